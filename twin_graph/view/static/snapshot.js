// One snapshot, in a dialog over the page.

import { get } from "./api.js";
import { NONE, count, counted, h, number, put, score, when } from "./dom.js";
import { filmOf } from "./lists.js";

const dialog = document.getElementById("dialog");
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // beside it
});
dialog.addEventListener("close", () => put(dialog)); // a film ends with it

export async function showSnapshot(index, id) {
  const close = h(
    "button",
    { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() },
    "×",
  );
  const body = h("div", null, h("p", { class: "note" }, "Reading ..."));
  put(dialog, h("header", null, h("h2", { id: "dialog-title" }, id), close), body);
  if (!dialog.open) dialog.showModal();
  try {
    put(body, facts(index, await get(`runs/${index}/snapshots/${encodeURIComponent(id)}`), id));
  } catch (error) {
    put(body, h("p", { class: "note bad" }, error.message));
  }
}

function facts(index, one, id) {
  const rows = [
    ["lineage", one.lineage],
    !one.origin && [
      "after",
      `${counted(one.counters.updates, "update")}, ${counted(one.counters.agent_steps, "agent step")}, ${counted(one.counters.episodes, "episode")}`,
    ],
    ["depth", one.depth_agent_steps === null ? NONE : `${number(one.depth_agent_steps)} agent steps`],
    ["parent", one.parent ?? NONE],
    one.origin && (one.origin.startsWith("mean of ") ? ["is the", one.origin] : ["imported from", one.origin]),
    ["committed (UTC)", `${when(one.time)}, attempt ${one.attempt}`],
    ["made by", one.run],
    one.abandoned && ["abandoned", "the run went back to a resume point before it"],
    [
      "weights",
      `${one.has_weights ? `${count(one.bytes)} bytes` : "removed by retention"}${one.pinned ? ", pinned" : ""}`,
    ],
    ["weights_sha256", h("code", { class: "wrap" }, one.weights_sha256)],
    ["target from update", one.served_from.length ? some(one.served_from.map(count)) : "never"],
    ...one.evaluations.map((evaluation) => [
      evaluation.scheduled ? "score" : "score, by hand",
      `${score(evaluation.mean)} (${intervalBefore(evaluation.interval_95)}${counted(evaluation.returns.length, "game")})`,
    ]),
    [
      "variables",
      h(
        "ul",
        { class: "bare" },
        one.variables.map(({ name, shape }) => h("li", null, h("code", null, `${name} [${shape.join(", ")}]`))),
      ),
    ],
  ].filter(Boolean);
  return [
    one.film ? h("video", { controls: true, preload: "metadata", playsinline: true, src: filmOf(index, id) }) : null,
    h(
      "dl",
      { class: "rows" },
      rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
    ),
  ];
}

/** Of one game there is no interval. */
const intervalBefore = (ends) => (ends ? `95% interval ${ends.map(score).join(" to ")}, ` : "");

const some = (list) =>
  list.length <= 8 ? list.join(", ") : `${list.slice(0, 6).join(", ")} ... ${list.at(-1)} (${list.length} times)`;
