// A swap by hand: first tried, then done.

import { post } from "./api.js";
import { h, put } from "./dom.js";
import { section } from "./parts.js";

export function swapPart(run) {
  const { learners } = run.about;
  const part = section(
    "Swap by hand",
    "Restore a snapshot into a twin, as `twin-graph swap` does. A run that trains does it after its next vector step or chunk, any other when it is resumed.",
    "swap",
  );
  const answer = h("output", { class: "answer", "aria-live": "polite" });
  const reference = h("input", {
    id: "swap-reference",
    required: true,
    placeholder: "latest~5, best, @update:12000, an id",
    list: "swap-references",
    autocomplete: "off",
    spellcheck: "false",
  });
  const into = h(
    "select",
    { id: "swap-into" },
    h("option", { value: "target" }, "target twin"),
    run.about.opponent ? h("option", { value: "opponent" }, "opponent") : null,
    h("option", { value: "online" }, "online twin"),
  );
  const learner =
    learners.length > 1
      ? h(
          "select",
          { id: "swap-learner" },
          learners.map((name) => h("option", null, name)),
        )
      : null;
  const hold = h("input", { type: "checkbox" });
  const go = h("button", { type: "submit", class: "main", disabled: true }, "Swap");
  let tried = null; // what would be done: of words like `latest` the snapshot that they meant when it was tried
  const form = h(
    "form",
    {
      class: "swapping",
      oninput: changed,
      onsubmit: (event) => {
        event.preventDefault();
        ask(event.submitter === go ? agreed(tried) : tryOut); // Enter tries
      },
    },
    h("label", { for: "swap-reference" }, "Snapshot"),
    h("div", null, reference),
    h(
      "datalist",
      { id: "swap-references" },
      ["latest", "latest~1", "latest~5", "best"].map((value) => h("option", { value })),
    ),
    h("label", { for: "swap-into" }, "Into"),
    h("div", null, into, learner && [" of learner ", learner]),
    h("span"),
    h("label", { class: "check" }, hold, "hold it: suspend scheduled refreshes"),
    h("span"),
    h(
      "div",
      { class: "bar" },
      h("button", { type: "submit" }, "Try (changes nothing)"),
      go,
      h(
        "button",
        { type: "button", onclick: () => ask(agreed({ ...wanted(), undo: true })) },
        "Undo the last swap",
      ),
    ),
  );
  part.body.append(form, answer);

  const wanted = () => ({
    reference: reference.value.trim(),
    into: into.value,
    learner: learner?.value ?? "",
    hold: hold.checked && into.value !== "online",
    undo: false,
    dry_run: true,
    yes: false,
  });

  const send = (what) => post(`runs/${run.index}/swap`, what);

  /** Tries what is wanted now, and remembers it if it can be done and nobody has typed since. */
  async function tryOut() {
    const what = wanted();
    const { done, message, snapshot } = await send(what);
    if (done && JSON.stringify(wanted()) === JSON.stringify(what)) tried = { ...what, reference: snapshot };
    return { done, message };
  }

  /** Does what is wanted, once somebody has agreed to what the online twin loses by it. */
  const agreed = (what) => async () => {
    const { loss } = await send({ ...what, dry_run: true });
    if (loss && !window.confirm(`${loss}.\n\nGo on?`)) return { done: false, message: "Nothing was changed." };
    return send({ ...what, dry_run: false, yes: loss !== "" });
  };

  /** What was tried is no longer what would be done. */
  function changed() {
    tried = null;
    go.disabled = true;
    hold.disabled = into.value === "online";
    put(answer);
  }

  async function ask(act) {
    const buttons = [...form.querySelectorAll("button")];
    const focused = document.activeElement; // a button that is disabled loses the focus
    buttons.forEach((button) => {
      button.disabled = true;
    });
    put(answer, "Waiting for the answer ...");
    tried = null;
    try {
      const { done, message } = await act();
      answer.className = done ? "answer good" : "answer bad";
      put(answer, message);
    } catch (error) {
      answer.className = "answer bad";
      put(answer, error.message);
    }
    buttons.forEach((button) => {
      button.disabled = button === go && !tried;
    });
    if (document.activeElement === document.body) focused.focus();
  }

  return part;
}
