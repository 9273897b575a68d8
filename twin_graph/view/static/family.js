// A run's forks, and what it was forked from, on one axis of agent steps.

import { count, h, put, renew, score, state } from "./dom.js";
import { section } from "./parts.js";

export function familyPart(library, run) {
  const part = section("Forks", null, "forks");
  const list = h("ol", { class: "family" });
  const scale = h("div", { class: "scale soft" });
  part.body.append(list, scale);

  /** The rows of the tree that belong to the oldest known ancestor of this run. */
  function family() {
    const rows = library.tree.filter(([, index]) => library.runs.has(index));
    const at = rows.findIndex(([, index]) => index === run.index);
    let first = at;
    while (first > 0 && rows[first][0] > 0) first -= 1;
    let end = at + 1;
    while (end < rows.length && rows[end][0] > 0) end += 1;
    return rows.slice(Math.max(0, first), end);
  }

  function show() {
    const rows = family();
    const origin = run.summary().forked_from;
    const isKnown = !origin || rows.length > 1;
    if (rows.length < 2) {
      put(
        part.body,
        h(
          "p",
          { class: "note" },
          isKnown
            ? "No fork of it is shown here. "
            : `It was forked from ${origin.run}, which is not shown here, at resume point ${origin.point}, after ${count(origin.updates)} updates. `,
          "Give it another future with ",
          h("code", null, run.about.fork),
        ),
      );
      return;
    }
    if (list.parentNode !== part.body) put(part.body, list, scale);
    const end = Math.max(1, ...rows.map(([, index]) => library.runs.get(index).agent_steps ?? 0));
    renew(
      list,
      rows.map(([depth, index]) => {
        const one = library.runs.get(index);
        const from = one.forked_from;
        const bar = h("span", { class: "bar-of" }, h("span", { class: index === run.index ? "mine" : null }));
        const begin = (from?.agent_steps ?? 0) / end;
        bar.firstChild.style.insetInlineStart = `${100 * begin}%`;
        bar.firstChild.style.inlineSize = `${Math.max(0.4, 100 * ((one.agent_steps ?? 0) / end - begin))}%`;
        const name =
          index === run.index
            ? h("b", { "aria-current": "page" }, one.run)
            : h("a", { href: `#/run/${index}` }, one.run);
        const twig = h("span", { class: "twig", "aria-hidden": "true" }, depth ? "└ " : "");
        twig.style.paddingInlineStart = `${Math.max(0, depth - 1) * 1.1}rem`;
        const told = [
          from
            ? `from ${depth ? "" : `${from.run}, `}update ${count(from.updates)}, resume point ${from.point}`
            : "from the beginning",
          one.scores?.latest ? `latest score ${score(one.scores.latest.mean)}` : null,
        ]
          .filter(Boolean)
          .join("; ");
        return h(
          "li",
          null,
          h("div", { class: "who" }, twig, name, " ", state(one)),
          bar,
          h("div", { class: "soft told" }, told),
        );
      }),
    );
    put(scale, h("span", null, "0"), h("span", null, `${count(end)} agent steps`));
  }

  return { ...part, read: async () => show() };
}
