// The page: which view is shown, and what reaches it from the server.

import { follow, get } from "./api.js";
import { compareView } from "./compare.js";
import { h, put } from "./dom.js";
import { homeView } from "./home.js";
import { runView } from "./run.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const link = document.getElementById("link");

/** All that views share: summaries of runs by their number, the tree of forks, and what the server allows. */
const library = { runs: new Map(), tree: [], allowSwaps: false };
let view = null;

function take(message) {
  for (const summary of message.runs) {
    if (summary.state === "gone") library.runs.delete(summary.index);
    else library.runs.set(summary.index, summary);
  }
  library.tree = message.tree;
}

function show() {
  view?.close?.();
  document.getElementById("dialog").close(); // of the view before
  const [, kind, numbers] = location.hash.match(/^#\/(run|compare)\/([\d,]+)$/) ?? [];
  const indexes = (numbers ?? "")
    .split(",")
    .filter(Boolean)
    .map(Number)
    .filter((index) => library.runs.has(index));
  let title = "Runs";
  if (kind === "run" && indexes.length) {
    title = library.runs.get(indexes[0]).run;
    view = runView(library, indexes[0]);
  } else if (kind === "compare" && indexes.length > 1) {
    title = `${indexes.length} runs compared`;
    view = compareView(library, indexes);
  } else {
    view = homeView(library);
  }
  document.title = title === "Runs" ? "twin-graph" : `${title} - twin-graph`;
  put(crumbs, title === "Runs" ? [] : [h("a", { href: "#/" }, "Runs"), h("span", { "aria-current": "page" }, title)]);
  put(main, view.element);
  view.opened?.();
  window.scrollTo(0, 0);
}

function say(isLinked) {
  link.className = isLinked ? "live" : "lost";
  link.textContent = isLinked ? "live" : "no connection: is twin-graph view still running? If it was restarted, open the address it prints";
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # names the view
  main.focus();
});
window.addEventListener("hashchange", show);

try {
  const message = await get("runs");
  library.allowSwaps = message.allow_swaps;
  take(message);
  show();
  document.documentElement.dataset.ready = "true";
  follow(
    message.version,
    (news) => {
      take(news);
      view.changed?.(new Set(news.runs.map((summary) => summary.index)));
    },
    say,
  );
} catch (error) {
  put(main, h("p", { class: "note bad" }, error.message));
}
