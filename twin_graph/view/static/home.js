// All runs.

import { NONE, brief, count, counted, h, put, score, spark, state } from "./dom.js";

const COLUMNS = [
  { name: "run", label: "run", key: (run) => run.run },
  { name: "state", label: "state", key: (run) => run.state },
  { name: "env", label: "environment", key: (run) => run.environment ?? "" },
  { name: "curve", label: "learning curve" },
  { name: "latest", label: "latest score", key: (run) => run.scores?.latest?.mean, number: true },
  { name: "best", label: "best score", key: (run) => run.scores?.best?.mean, number: true },
  { name: "steps", label: "agent steps", key: (run) => run.agent_steps, number: true },
  { name: "rate", label: "agent steps/s", key: (run) => run.agent_steps_per_second, number: true },
];

export function homeView(library) {
  const chosen = new Set();
  const rows = new Map();
  let sorted = null; // {column, down}; else the tree
  const lead = h("p", { class: "lead" });
  const filter = h("input", {
    type: "search",
    placeholder: "Filter by name or environment",
    "aria-label": "Filter runs",
    oninput: arrange,
  });
  const compare = h("button", {
    type: "button",
    class: "main",
    disabled: true,
    onclick: () => {
      location.hash = `#/compare/${[...chosen].join(",")}`;
    },
  });
  const headings = COLUMNS.map((column) =>
    h(
      "th",
      { scope: "col", class: `col-${column.name}${column.number ? " number" : ""}` },
      column.key
        ? h("button", { type: "button", class: "sort", onclick: () => sort(column) }, column.label)
        : column.label,
    ),
  );
  const body = h("tbody");
  const table = h(
    "table",
    { class: "runs" },
    h("thead", null, h("tr", null, h("th", { class: "pick" }, h("span", { class: "unseen" }, "compare")), headings)),
    body,
  );
  const empty = h(
    "p",
    { class: "note" },
    "No runs yet. Start one with ",
    h("code", null, "twin-graph train cartpole"),
    "; it will appear here automatically.",
  );
  const element = h(
    "div",
    null,
    h("h1", null, "Runs"),
    lead,
    h("div", { class: "bar" }, filter, compare),
    empty,
    table,
  );

  function sort(column) {
    const isSame = sorted?.column === column;
    if (isSame && sorted.down === !column.number)
      sorted = null; // the third time: the tree again
    else sorted = { column, down: isSame ? !sorted.down : Boolean(column.number) };
    arrange();
  }

  function arrange() {
    const wanted = filter.value.trim().toLowerCase();
    let order = library.tree.filter(([, index]) => library.runs.has(index));
    if (wanted) {
      order = order.filter(([, index]) => {
        const run = library.runs.get(index);
        return `${run.run} ${run.environment ?? ""}`.toLowerCase().includes(wanted);
      });
    }
    if (sorted) {
      const { column, down } = sorted;
      const key = ([, index]) => column.key(library.runs.get(index));
      const isNone = (value) => value === undefined || value === null;
      order = order
        .map(([, index]) => [0, index])
        .sort((one, other) => {
          const [a, b] = [key(one), key(other)];
          if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
          return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
        });
    }
    COLUMNS.forEach((column, i) => {
      if (sorted?.column === column) headings[i].setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else headings[i].removeAttribute("aria-sort");
    });
    const elements = order.map(([depth, index]) => {
      const row = rows.get(index);
      row.indent(depth);
      return row.element;
    });
    const present = [...body.children];
    // Rows that stay where they are keep the focus.
    if (present.length !== elements.length || present.some((row, i) => row !== elements[i])) put(body, elements);
  }

  function tell() {
    for (const index of [...chosen]) if (!library.runs.has(index)) chosen.delete(index);
    const runs = [...library.runs.values()];
    const training = runs.filter((run) => run.state === "running").length;
    const wrong = runs.filter((run) => run.state === "failed" || run.state === "damaged").length;
    const parts = [counted(runs.length, "run")];
    if (training) parts.push(`${training} training`);
    if (wrong) parts.push(`${wrong} failed or damaged`);
    lead.textContent = runs.length ? parts.join(", ") : "";
    table.hidden = !runs.length;
    empty.hidden = Boolean(runs.length);
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "Compare: choose two or more" : `Compare ${chosen.size} runs`;
  }

  function refresh(indexes) {
    for (const index of indexes) {
      const run = library.runs.get(index);
      if (!run) {
        rows.delete(index);
        continue;
      }
      if (!rows.has(index)) rows.set(index, row(index, chosen, tell));
      rows.get(index).fill(run);
    }
    arrange();
    tell();
  }

  refresh(library.runs.keys());
  return { element, changed: refresh };
}

function row(index, chosen, tell) {
  const pick = h("input", {
    type: "checkbox",
    onchange: () => {
      if (pick.checked) chosen.add(index);
      else chosen.delete(index);
      tell();
    },
  });
  const twig = h("span", { class: "twig", "aria-hidden": "true" });
  const name = h("a", { href: `#/run/${index}` });
  const cells = Object.fromEntries(
    COLUMNS.map(({ name: column, number }) => [column, h("td", { class: `col-${column}${number ? " number" : ""}` })]),
  );
  cells.run.append(twig, name);
  const progress = h("span", { class: "progress", "aria-hidden": "true" }, h("span"));
  const element = h("tr", null, h("td", { class: "pick" }, pick), Object.values(cells));

  return {
    element,
    indent(depth) {
      twig.textContent = depth ? "└ " : "";
      twig.style.paddingInlineStart = `${Math.max(0, depth - 1) * 1.1}rem`;
    },
    fill(run) {
      name.textContent = run.run;
      pick.setAttribute("aria-label", `Compare ${run.run}`);
      pick.disabled = run.state === "damaged" || run.state === "reading";
      put(cells.state, state(run));
      element.classList.toggle("damaged", run.state === "damaged");
      if (run.state === "reading") return;
      if (run.state === "damaged") {
        put(cells.env, h("span", { class: "soft wrap" }, run.reason));
        for (const column of ["curve", "latest", "best", "steps", "rate"]) put(cells[column]);
        return;
      }
      put(cells.env, run.environment);
      put(cells.curve, spark(run.spark));
      for (const which of ["latest", "best"])
        put(cells[which], run.scores[which] ? score(run.scores[which].mean) : NONE);
      progress.firstChild.style.width = `${Math.min(100, (100 * run.agent_steps) / (run.total_steps || 1))}%`;
      put(
        cells.steps,
        h(
          "span",
          { title: `${count(run.agent_steps)} of ${count(run.total_steps)}` },
          count(run.agent_steps),
          run.agent_steps < run.total_steps && h("span", { class: "soft of" }, ` / ${brief(run.total_steps)}`),
        ),
        progress,
      );
      put(cells.rate, run.agent_steps_per_second ? count(run.agent_steps_per_second) : NONE);
      cells.rate.classList.toggle("soft", run.state !== "running");
    },
  };
}
