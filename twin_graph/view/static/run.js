// One run: what it learned, from which targets, and how.

import { get } from "./api.js";
import { HUES, UNITS, several, share } from "./charts.js";
import { axis, learning, metric, show } from "./curves.js";
import { NONE, brief, count, counted, h, number, percent, put, renew, score, state, throttled } from "./dom.js";
import { familyPart } from "./family.js";
import { evaluationsPart, filmsPart, ledgerPart } from "./lists.js";
import { axisChoice, noting, section, snapshotButton } from "./parts.js";
import { showSnapshot } from "./snapshot.js";
import { swapPart } from "./swap.js";
import { timelinePart } from "./timeline.js";

const STEPS = 80; // of the stacked plot, whose lines are means of several of the log's
const REST = 2000; // milliseconds between two readings of a run that trains
const ACTING = new Set(["act", "environment", "sample", "target"]);
const LEARNER_COLOURS = ["online", "hue2"];

export function runView(library, index) {
  const closing = [];
  const summary = () => library.runs.get(index);
  const facts = h("dl", { class: "facts" });
  const title = h("h1");
  const lead = h("p", { class: "lead" });
  const element = h("div", null, title, lead, facts);
  const open = (snapshot) => showSnapshot(index, snapshot);
  const later = []; // what is read again when the run has changed
  let isBegun = false;
  let forks = null;
  const run = { index, summary, open, about: null };
  const contents = h("nav", { class: "contents", "aria-label": "Sections" });
  const rest = h("div", null, h("p", { class: "note" }, "Reading ..."));
  element.append(contents, rest);

  function tell() {
    const now = summary();
    title.textContent = now.run;
    if (now.state === "reading") return;
    if (now.state === "damaged") {
      put(lead, state(now), h("span", null, now.reason));
      renew(facts);
      if (!isBegun) put(rest);
      return;
    }
    const policy = run.about?.has_target === false ? "no target" : run.about && `policy ${run.about.policy}`;
    put(
      lead,
      state(now),
      now.reason && now.state !== "running" ? h("span", null, now.reason) : null,
      h("span", null, now.environment),
      policy && h("span", null, policy),
      run.about && h("span", null, `seed ${run.about.seed}`),
      now.attempt > 1 && h("span", null, `attempt ${now.attempt}`),
    );
    const best = now.scores.best;
    const latest = now.scores.latest;
    renew(
      facts,
      fact(
        "agent steps",
        count(now.agent_steps),
        `of ${brief(now.total_steps)}`,
        now.agent_steps / (now.total_steps || 1),
      ),
      fact("updates", count(now.updates), counted(now.episodes, "episode")),
      fact("latest score", score(latest?.mean), latest && snapshotButton(latest.snapshot, open)),
      fact("best score", score(best?.mean), best && snapshotButton(best.snapshot, open)),
      ...targets(now, open),
      fact("rate", now.agent_steps_per_second ? count(now.agent_steps_per_second) : NONE, "agent steps/s"),
      fact("snapshots", count(now.snapshots), `${count(now.snapshots_with_weights)} with weights`),
    );
  }

  async function begin() {
    if (isBegun || summary().state === "damaged") return;
    isBegun = true;
    try {
      run.about = await get(`runs/${index}/about`);
    } catch (error) {
      isBegun = false; // until the run has changed
      put(rest, h("p", { class: "note bad" }, error.message));
      return;
    }
    if (!element.isConnected) return; // another page was opened meanwhile
    tell();
    const curves = curvesPart(run);
    const all = [
      ["Learning", curves.learning],
      ["Targets", timelinePart(run, "target")],
      run.about.opponent ? ["Opponents", timelinePart(run, "opponent")] : null,
      ["Twins", curves.twins],
      ["Time", curves.time],
      ["Evaluations", evaluationsPart(run)],
      ["Ledger", ledgerPart(run)],
      ["Films", filmsPart(run)],
      ["Forks", (forks = familyPart(library, run))],
      library.allowSwaps ? ["Swap by hand", swapPart(run)] : null,
    ].filter(Boolean);
    put(
      contents,
      all.map(([name, part]) =>
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              part.element.scrollIntoView({ block: "start" });
              part.element.focus({ preventScroll: true });
            },
          },
          name,
        ),
      ),
    );
    put(
      rest,
      all.map(([, part]) => part.element),
    );
    for (const part of [curves, ...all.map(([, part]) => part)]) {
      if (part.close) closing.push(part.close);
      if (!part.read) continue;
      later.push(throttled(() => noting(part, part.read), REST));
    }
    later.forEach((read) => read());
  }

  tell();
  return {
    element,
    opened: begin,
    changed(changed) {
      if (!summary()) {
        location.hash = "#/";
        return;
      }
      forks?.read(); // another run may be a fork of this one
      if (!changed.has(index)) return;
      tell();
      if (summary().state === "damaged") return;
      begin();
      later.forEach((read) => read());
    },
    close: () => closing.forEach((close) => close()),
  };
}

function fact(name, value, more, part) {
  const bar = part === undefined ? null : h("span", { class: "progress", "aria-hidden": "true" }, h("span"));
  if (bar) bar.firstChild.style.width = `${Math.min(100, 100 * part)}%`;
  return h("div", null, h("dt", null, name), h("dd", null, value), h("dd", { class: "soft" }, more, bar));
}

function targets(now, open) {
  const first = now.targets[0];
  if (!first) return [];
  const others = now.targets.length > 2 ? `, and ${now.targets.length - 1} more` : "";
  return now.targets.slice(0, others ? 1 : 2).map((target) => {
    const whose = target.learner === "online" ? "target now" : `${target.learner}'s target`;
    return fact(
      whose,
      snapshotButton(target.snapshot, open),
      `serving for ${counted(target.served_updates, "update")}${target.held ? ", held" : ""}${others}`,
    );
  });
}

/** The plots of what `curves` answers: scores, distances, times. */
function curvesPart(run) {
  const { learners, is_in_chunks: isInChunks } = run.about;
  const learned = section(
    "Learning curve",
    "A score is the mean return of whole games that one snapshot plays, with its 95% interval. Training returns include exploration.",
    "learning",
    axisChoice(draw),
  );
  const twins = section(
    "The twins",
    "How far the target is from the online network, on fixed observations; it falls towards 0 when the newest snapshot becomes the target.",
    "twins",
  );
  const time = section(
    "Where a second goes",
    isInChunks
      ? "Two threads work side by side: one trains, the other acts and evaluates targets."
      : "Shares of the time, by what the trainer does.",
    "time",
  );
  const plots = new Map();
  let read = null;

  const host = h("div");
  learned.body.append(host);
  const distances = [
    ["target/q_distance", "mean |Q − Q target|", number],
    ["target/greedy_agreement", "equal greedy actions", percent],
    ["target/weight_distance", "Euclidean distance of weights", number],
  ].map(([column, unit, format]) => ({ column, unit, format, host: h("div") }));
  twins.body.append(
    h(
      "div",
      { class: "thirds" },
      distances.map((one) => one.host),
    ),
  );
  const threads = isInChunks
    ? [
        ["the thread that trains", (phase) => !ACTING.has(phase)],
        ["the thread that acts", (phase) => ACTING.has(phase)],
      ]
    : [["the trainer", () => true]];
  const hosts = threads.map(() => h("div"));
  time.body.append(h("div", { class: threads.length > 1 ? "halves" : "" }, hosts));

  function draw() {
    if (!read) return;
    const whose = (learner) => (learners.length > 1 && learner ? `, ${learner}` : "");
    const tone = (learner) => LEARNER_COLOURS[Math.max(0, learners.indexOf(learner))];
    const lines = read.scores.map((one) => ({
      scores: one,
      name: (one.scheduled ? "score" : "score, by hand") + whose(one.learner),
      colour: one.scheduled ? tone(one.learner) : "hand",
    }));
    const x = axis.name;
    const training = { columns: [[], []], name: "training return", colour: "faded" };
    const found = metric([{ metrics: read.metrics, column: "train_return", name: "training return" }], x, score);
    if (found.data) training.columns = found.data;
    show(plots, host, learning(lines, [training], x), { label: "Learning curve", unit: "return per episode", height: 320 });
    for (const { column, unit, format, host: place } of distances) {
      const columns = learners.map((learner, i) => ({
        metrics: read.metrics,
        column: i ? `${column}/${learner}` : column,
        name: learners.length > 1 ? `learner ${learner}` : unit,
        colour: i ? "hue2" : "target",
      }));
      const result = metric(columns, x, format);
      show(plots, place, result, {
        label: unit,
        unit: learners.length > 1 ? unit : "",
        height: 200,
        ...(format === percent ? { ticks: (value) => `${Math.round(100 * value)}%` } : {}),
      });
    }
    threads.forEach(([label, isOf], i) => {
      const stack = stacked(read, x, isOf);
      show(plots, hosts[i], stack, {
        label: `Where a second goes: ${label}`,
        unit: label,
        height: 220,
        ticks: (value) => `${Math.round(100 * value)}%`,
        range: share,
      });
    });
  }

  return {
    learning: learned,
    twins,
    time,
    note: learned.note,
    async read() {
      read = await get(`runs/${run.index}/curves`);
      draw();
      if (read.damage) throw new Error(read.damage); // a note; the scores are shown
    },
    close: () => plots.forEach((plot) => plot.close()),
  };
}

/** Shares of the time on top of each other, the largest at the bottom. */
function stacked(read, x, isOf) {
  const { metrics } = read;
  const phases = read.phases
    .filter(isOf)
    .map((phase) => ({ phase, values: metrics[`time_share/${phase}`] ?? [] }))
    .filter(({ values }) => values.some((value) => value > 0.002));
  const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
  phases.sort((one, other) => total(other.values) - total(one.values));
  const rows = [...(metrics[x] ?? []).keys()].filter((row) => metrics[x][row] !== null);
  if (rows.length < 2 || !phases.length) return { data: null }; // of one row an area has no width
  const size = Math.ceil(rows.length / STEPS);
  const groups = Array.from({ length: Math.ceil(rows.length / size) }, (_, i) => rows.slice(i * size, (i + 1) * size));
  const means = phases.map(({ values }) =>
    groups.map((group) => group.reduce((sum, row) => sum + (values[row] ?? 0), 0) / group.length),
  );
  const tones = read.phases.map((_, i) => (i < HUES ? { fill: several(i) } : { fill: several(i), quiet: 0.35 }));
  const sums = new Array(groups.length).fill(0);
  const columns = means.map((values) => values.map((value, i) => (sums[i] = Math.min(1, sums[i] + value))));
  const named = phases.map(({ phase }, i) => ({
    name: phase,
    width: 0,
    format: percent,
    values: means[i],
    ...tones[read.phases.filter(isOf).indexOf(phase)],
  }));
  // The highest sum first, so that each lower one is painted over it.
  const order = named.map((_, i) => named.length - 1 - i);
  return {
    data: [groups.map((group) => metrics[x][group.at(-1)]), ...order.map((i) => columns[i])],
    what: { series: order.map((i) => named[i]), x: UNITS[x] },
  };
}
