// Pieces that several views are made of.

import { UNITS } from "./charts.js";
import { axis } from "./curves.js";
import { count, h } from "./dom.js";

/** A section with a heading, a sentence, and places for a note and for what it shows. */
export function section(title, text, id, tools) {
  const note = h("p", { class: "note bad", hidden: true });
  const body = h("div", { class: "body" });
  const element = h(
    "section",
    { class: "panel", id, tabindex: id && -1 },
    h("header", null, h("h2", null, title), tools),
    text && h("p", { class: "about" }, coded(text)),
    note,
    body,
  );
  return { element, note, body };
}

/** Does what reads from the server; what goes wrong is the section's note. */
export async function noting(part, work) {
  try {
    await work();
    part.note.hidden = true;
  } catch (error) {
    part.note.hidden = false;
    part.note.textContent = error.message;
  }
}

/** Text with `code` as Markdown writes it. */
const coded = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", null, part) : part));

/** A snapshot's id, which opens what is known of it. */
export function snapshotButton(snapshot, open) {
  return h("button", { type: "button", class: "snapshot", onclick: () => open(snapshot) }, snapshot);
}

/** Which x axis the curves have. */
export function axisChoice(changed) {
  const name = `axis${Math.random()}`;
  return h(
    "fieldset",
    { class: "choice" },
    h("legend", null, "x axis"),
    Object.entries(UNITS).map(([value, label]) =>
      h(
        "label",
        null,
        h("input", {
          type: "radio",
          name,
          value,
          checked: axis.name === value,
          onchange: () => {
            axis.name = value;
            changed();
          },
        }),
        label,
      ),
    ),
  );
}

/** Buttons to page through rows that the server has; `turned(offset)` is called. */
export function pager(size, turned) {
  let offset = 0;
  let rows = 0; // in all, as far as known
  const newer = h("button", { type: "button", onclick: () => turn(offset - size) }, "Newer");
  const older = h("button", { type: "button", onclick: () => turn(offset + size) }, "Older");
  const where = h("span", { class: "soft", role: "status" });
  function turn(to) {
    if (to < 0 || (to > offset && to >= rows)) return; // a second click, before the first was answered
    offset = to;
    turned();
  }
  return {
    element: h("div", { class: "pager" }, newer, older, where),
    offset: () => offset,
    first() {
      offset = 0;
    },
    tell(total) {
      rows = total;
      newer.disabled = offset === 0;
      older.disabled = offset + size >= total;
      where.textContent = total
        ? `${count(offset + 1)} to ${count(Math.min(total, offset + size))} of ${count(total)}`
        : "none";
    },
  };
}
