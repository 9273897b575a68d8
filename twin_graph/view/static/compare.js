// Two or more runs on one axis.

import { get } from "./api.js";
import { dashed, several, swatched } from "./charts.js";
import { axis, learning, metric, show } from "./curves.js";
import { NONE, count, h, percent, put, renew, score, state, throttled } from "./dom.js";
import { axisChoice, section } from "./parts.js";

const MEASURES = [
  { column: "train_return", title: "Training return", unit: "mean of the last 20 training games", format: score },
  { column: "target/q_distance", title: "Distance of the twins", unit: "mean |Q − Q target|" },
  { column: "target/greedy_agreement", title: "Agreement of the twins", unit: "equal greedy actions", format: percent },
  { column: "depth", title: "Depth of what is learned", unit: "agent steps ahead that values can reach" },
  { column: "loss", title: "Loss", unit: "mean of a minibatch" },
  { column: "agent_steps_per_second", title: "Rate", unit: "agent steps/s", format: count },
];

const FACTS = ["run", "state", "agent steps", "updates", "latest score", "best score"];

/** A setting's value; some are lists or tables. */
function inWords(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function compareView(library, indexes) {
  const curves = new Map();
  const failed = new Map(); // what the server says of runs whose curves cannot be read
  const plots = new Map();
  const name = (index) => library.runs.get(index)?.run ?? NONE;
  const facts = h("tbody");
  const settings = h("div");
  const scores = section("Scores", "The mean return of whole games that a snapshot plays, with its 95% interval.");
  const measures = MEASURES.map((measure) => ({ ...measure, part: section(measure.title) }));
  const element = h(
    "div",
    null,
    h("h1", null, "Runs compared"),
    h(
      "div",
      { class: "panel scroll", tabindex: 0, role: "region", "aria-label": "The runs" },
      h(
        "table",
        { class: "plain named" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            FACTS.map((text, i) =>
              h("th", { scope: "col", class: i > 1 && "number" }, text),
            ),
          ),
        ),
        facts,
      ),
    ),
    h("div", { class: "bar" }, axisChoice(draw)),
    scores.element,
    h(
      "div",
      { class: "halves" },
      measures.map(({ part }) => part.element),
    ),
    h("section", { class: "panel" }, h("h2", null, "Settings that differ"), settings),
  );

  function draw() {
    const present = indexes.filter((index) => curves.has(index));
    const look = (index, second) => ({
      colour: several(indexes.indexOf(index)),
      dash: dashed(indexes.indexOf(index), second),
    });
    const isOne = (index) => curves.get(index).scores.filter((one) => one.scheduled).length === 1;
    const lines = present.flatMap((index) =>
      curves
        .get(index)
        .scores.filter((one) => one.scheduled)
        .map((one, place) => ({
          scores: one,
          name: isOne(index) ? name(index) : `${name(index)}, ${one.learner}`,
          ...look(index, place),
        })),
    );
    show(plots, scores.body, learning(lines, [], axis.name), {
      label: "Scores of the runs",
      unit: "score, return per episode",
      height: 320,
    });
    for (const { part, column, unit, title, format } of measures) {
      const of = present.map((index) => ({
        metrics: curves.get(index).metrics,
        column,
        name: name(index),
        ...look(index),
      }));
      show(plots, part.body, metric(of, axis.name, format), {
        label: title,
        unit,
        height: 220,
        ticks: format === percent ? percent : undefined,
      });
    }
  }

  function tell() {
    renew(
      facts,
      indexes
        .filter((index) => library.runs.has(index))
        .map((index) => {
          const run = library.runs.get(index);
          const place = indexes.indexOf(index);
          const dash = dashed(place);
          const swatch = h("i", { class: `swatch ${dash ? "dashed" : ""}` });
          swatch.style.background = swatched(several(place), dash);
          return h(
            "tr",
            null,
            h("td", null, swatch, h("a", { href: `#/run/${index}` }, run.run)),
            h("td", { "data-name": FACTS[1] }, state(run)),
            [
              count(run.agent_steps),
              count(run.updates),
              score(run.scores?.latest?.mean),
              score(run.scores?.best?.mean),
            ].map((text, i) => h("td", { class: "number", "data-name": FACTS[i + 2] }, text)),
          );
        }),
    );
  }

  const load = throttled(async () => {
    const wanted = [...stale];
    stale.clear();
    for (const index of wanted) {
      try {
        const found = await get(`runs/${index}/curves`);
        curves.set(index, found);
        if (found.damage) failed.set(index, `${name(index)}: ${found.damage}`);
        else failed.delete(index);
      } catch (error) {
        failed.set(index, `${name(index)}: ${error.message}`);
      }
    }
    scores.note.hidden = !failed.size;
    put(scores.note, [...failed.values()].join("; "));
    draw();
  }, 2000);

  const attempts = () => indexes.map((index) => library.runs.get(index)?.attempt).join();
  let compared = ""; // the attempts whose settings are shown

  async function differ() {
    compared = attempts();
    try {
      const found = await get("differences", { runs: indexes.join(",") });
      const head = h(
        "tr",
        null,
        h("th", { scope: "col" }, "setting"),
        indexes.map((index) => h("th", { scope: "col" }, name(index))),
      );
      const rows = found.map(({ key, values }) =>
        h(
          "tr",
          null,
          h("th", { scope: "row" }, h("code", null, key)),
          values.map((value, i) =>
            h("td", { "data-name": name(indexes[i]) }, value === null ? NONE : inWords(value)),
          ),
        ),
      );
      put(
        settings,
        rows.length
          ? h(
              "div",
              { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings that differ" },
              h("table", { class: "plain named" }, h("thead", null, head), h("tbody", null, rows)),
            )
          : h("p", { class: "note" }, "They have equal settings."),
      );
    } catch (error) {
      put(settings, h("p", { class: "note bad" }, error.message));
    }
  }

  const stale = new Set(indexes);
  tell();
  return {
    element,
    opened() {
      load();
      differ();
    },
    changed(changed) {
      tell();
      for (const index of indexes) if (changed.has(index)) stale.add(index);
      if (stale.size) load();
      if (attempts() !== compared) differ();
    },
    close: () => plots.forEach((one) => one.close()),
  };
}
