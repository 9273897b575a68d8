// Which snapshot served when: bars under the diagonal on which the online twin moves.

import { get } from "./api.js";
import { Plot, clipped, colour, faint, fromZero, joined } from "./charts.js";
import { count, counted, h, number, put } from "./dom.js";
import { section, snapshotButton } from "./parts.js";

const AXIS = 52; // pixels; the three plots are in line

/** @param role "target" or "opponent", of which the same is known. */
export function timelinePart(run, role) {
  const { learners } = run.about;
  const isTarget = role === "target";
  const part = section(
    isTarget ? "Which snapshot served when" : "Which snapshot was the opponent when",
    `The online twin moves up the diagonal, an update at a time. Each bar is a snapshot that was the ${role}: its height shows when it was committed, its length when it served. The shading shows its age. An import or a mean of snapshots, which has no age, is a bar at the bottom.`,
    `${role}s`,
  );
  const asks = isTarget && run.about.has_target;
  const none = isTarget
    ? !asks && "This run uses no target: updates bootstrap from the online twin."
    : { random: "Random moves: no snapshot plays.", self: "The online twin's own weights play." }[run.about.opponent];
  const hosts = { served: h("div"), age: h("div"), depth: h("div") };
  const input = h("input", {
    type: "number",
    min: 1,
    step: 1,
    required: true,
    id: "explain-update",
    inputmode: "numeric",
    oninput: () => forget(),
    oninvalid: (event) => {
      event.preventDefault(); // what the browser would say in a bubble
      forget(h("p", { class: "bad" }, input.validationMessage));
    },
  });
  const why = h("div", { class: "why", role: "status" });
  const form = h(
    "form",
    {
      class: "bar",
      onsubmit: (event) => {
        event.preventDefault();
        explain(Number(input.value));
      },
    },
    h("label", { for: "explain-update" }, "Why that target? Click the chart, or enter an update:"),
    input,
    h("button", { type: "submit" }, "Explain"),
  );
  part.body.append(hosts.served, ...(asks ? [form, why] : []), hosts.age, hosts.depth);
  let lines = null;
  let shown = [0, 1]; // updates
  const plots = {};
  let asked = 0;

  const toneOf = (row) =>
    lines.by_hand[lines.policy[row]] ? "hand" : lines.learner[row] === learners[1] ? "hue2" : "target";

  /** The rows that served at an update; several where the target is an ensemble, or there are two learners. */
  function serving(update) {
    let low = 0;
    let high = lines.first.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lines.first[middle] <= update) low = middle + 1;
      else high = middle;
    }
    const found = [];
    const whose = new Set();
    for (let row = low - 1; row >= 0 && whose.size < learners.length; row -= 1) {
      const learner = lines.learner[row];
      if (whose.has(learner)) continue;
      const { first } = lines;
      for (let other = row; other >= 0 && first[other] === first[row]; other -= 1) {
        if (lines.learner[other] === learner && lines.last[other] >= update) found.push(other);
      }
      whose.add(learner);
    }
    return found;
  }

  const updateAt = (x) => Math.max(1, Math.min(lines.updates, Math.ceil(x)));

  function told(x) {
    const update = updateAt(x);
    const rows = serving(update);
    if (!rows.length) return `update ${count(update)}`;
    const what = rows.slice(0, 2).map((row) => {
      const made = lines.made_at[row];
      return (
        `${lines.ids[lines.snapshot[row]]}, ${made === null ? "an import or a mean" : `${counted(update - 1 - made, "update")} old`}` +
        (lines.depth[row] === null ? "" : `, depth ${number(lines.depth[row])} agent steps`)
      );
    });
    const more = rows.length > 2 ? `; and ${rows.length - 2} more` : "";
    return `update ${count(update)}: ${what.join("; ")}${more} (${lines.policies[lines.policy[rows[0]]]})`;
  }

  /** An answer, or one that is on its way, is not of what the field says now. */
  function forget(instead) {
    asked += 1;
    put(why, instead);
  }

  async function explain(update) {
    const mine = ++asked;
    input.value = update;
    try {
      const answer = await get(`runs/${run.index}/explain`, { update });
      if (mine !== asked) return; // a later question was answered first, or will be
      const served = answer.snapshots.map((one) => snapshotButton(one.id, run.open));
      const [from, to] = answer.used_for_updates;
      put(
        why,
        h(
          "p",
          null,
          `Update ${count(answer.update)} was bootstrapped from `,
          served.flatMap((one, i) => (i ? [", ", one] : [one])),
          `, which served for updates ${count(from)} to ${count(to)}. Policy ${answer.policy}: ${answer.reason}` +
            (answer.candidates ? `; chosen from ${counted(answer.candidates, "candidate")}.` : "."),
        ),
      );
    } catch (error) {
      if (mine === asked) put(why, h("p", { class: "bad" }, error.message));
    }
  }

  function paint(u) {
    clipped(u, (context, x, y, ratio) => {
      const { min, max } = u.scales.x;
      context.setLineDash([5 * ratio, 4 * ratio]);
      context.lineWidth = 1.5 * ratio;
      context.strokeStyle = colour("online");
      context.beginPath();
      context.moveTo(x(min), y(min));
      context.lineTo(x(max), y(max));
      context.stroke();
      context.setLineDash([]);
      const shades = new Map();
      const bars = new Map();
      for (let row = 0; row < lines.first.length; row += 1) {
        const made = lines.made_at[row];
        const from = lines.first[row] - 1;
        const to = lines.last[row];
        if (to < min || from > max) continue;
        const tone = toneOf(row);
        if (!bars.has(tone)) {
          bars.set(tone, new Path2D());
          shades.set(tone, new Path2D());
        }
        const level = made === null ? u.bbox.top + u.bbox.height - 1.25 * ratio : y(made);
        const [left, right] = [x(from), x(to)];
        // At least a pixel, or a refresh at each update would leave nothing to see.
        bars.get(tone).rect(left, level - 1.25 * ratio, Math.max(right - left, ratio), 2.5 * ratio);
        if (made === null) continue;
        const shade = shades.get(tone);
        shade.moveTo(left, level);
        shade.lineTo(left, y(from));
        shade.lineTo(right, y(to));
        shade.lineTo(right, level);
        shade.closePath();
      }
      for (const [tone, path] of shades) {
        context.fillStyle = faint(tone, 0.16);
        context.fill(path);
      }
      for (const [tone, path] of bars) {
        context.fillStyle = colour(tone);
        context.fill(path);
      }
    });
  }

  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  const valued = (rows, valueAt) => rows.filter((row) => valueAt(row, 0) !== null);

  /**
   * The line of a value over updates: of the age it is a saw's, since it grows until another snapshot serves. It has a
   * gap where there is no value, and reaches from 0 to the newest update, so that the plots are in line.
   */
  function strip(learner, valueAt) {
    const rows = [...lines.first.keys()].filter((row) => lines.learner[row] === learner);
    const columns = [[0], [null]];
    for (let from = 0; from < rows.length;) {
      const first = lines.first[rows[from]];
      const last = lines.last[rows[from]];
      let to = from;
      while (to < rows.length && lines.first[rows[to]] === first) to += 1;
      for (const update of first === last ? [first] : [first, last]) {
        columns[0].push(update);
        columns[1].push(mean(valued(rows.slice(from, to), valueAt).map((row) => valueAt(row, update))));
      }
      from = to;
    }
    if (columns[0].at(-1) < lines.updates) {
      columns[0].push(lines.updates);
      columns[1].push(null);
    }
    return columns;
  }

  function show(name, what, valueAt) {
    const present = learners
      .map((learner, i) => ({ columns: strip(learner, valueAt), i }))
      .filter(({ columns }) => columns[1].some((value) => value !== null));
    if (!present.length) {
      put(hosts[name], h("p", { class: "note" }, "Nothing is recorded yet."));
      return;
    }
    const series = present.map(({ i }) => ({
      name: learners.length > 1 ? `${what.name}, ${learners[i]}` : what.name,
      colour: i ? "hue2" : "target",
      width: 1.25,
      gaps: true,
    }));
    const read = (x) => {
      const update = updateAt(x);
      const values = learners
        .map((learner) => valued(serving(update), valueAt).filter((row) => lines.learner[row] === learner))
        .filter((rows) => rows.length)
        .map((rows) => what.format(mean(rows.map((row) => valueAt(row, update)))));
      return values.length ? `${values.join(" and ")} ${what.unit} at update ${count(update)}` : "";
    };
    const fixed = { label: what.name, unit: what.unit, height: 140, axisSize: AXIS, x: "updates", sync: part.element.id };
    plots[name] ??= new Plot(hosts[name], { ...fixed, range: fromZero, series, read });
    plots[name].show(joined(present.map(({ columns }) => columns)), { series });
  }

  return {
    ...part,
    async read() {
      lines = await get(`runs/${run.index}/timeline`, { role });
      input.max = lines.updates;
      if (!lines.first.length) {
        for (const name of Object.keys(plots)) drop(name); // the run began again
        put(hosts.served, h("p", { class: "note" }, none || "No snapshot has served yet."));
        return;
      }
      const key = (name, tone, dash) => ({ name, colour: tone, dash, line: false });
      const series = [
        { ...key("online twin", "online", [5, 4]) },
        ...learners.map((learner, i) =>
          key(learners.length > 1 ? `${role} of ${learner}` : role, i ? "hue2" : "target"),
        ),
        ...(lines.by_hand.some(Boolean) ? [key("swapped by hand", "hand")] : []),
      ];
      // The cursor needs places to be at; what is seen is painted.
      const places = [0, lines.updates];
      plots.served ??= new Plot(hosts.served, {
        label: `Timeline of the ${role}: ${counted(lines.ids.length, "snapshot")} served over ${counted(lines.updates, "update")}`,
        unit: "update at which the snapshot was committed",
        height: 300,
        axisSize: AXIS,
        x: "updates",
        sync: part.element.id,
        series,
        draw: paint,
        // uPlot ranges x first, and keeps the new one in its scale only after y.
        xRange: (u, min, max) => (shown = [min ?? 0, max || lines.updates || 1]),
        range: () => [lowest(...shown), shown[1]],
        read: told,
        click: asks ? (x) => explain(updateAt(x)) : undefined,
        fixedKeys: true,
      });
      plots.served.show([places, ...series.map(() => places)], { series });
      show("age", { name: `age of the ${role}`, unit: "updates", format: count }, (row, update) =>
        lines.made_at[row] === null ? null : update - 1 - lines.made_at[row],
      );
      show("depth", { name: `depth of the ${role}`, unit: "agent steps", format: number }, (row) => lines.depth[row]);
    },
    close: () => Object.values(plots).forEach((plot) => plot.close()),
  };

  function drop(name) {
    plots[name].close();
    delete plots[name];
    put(hosts[name]);
  }

  /** The oldest that is seen between two updates. */
  function lowest(min, max) {
    let low = min;
    for (let row = 0; row < lines.first.length; row += 1) {
      const made = lines.made_at[row];
      if (made !== null && lines.last[row] >= min && lines.first[row] <= max && made < low) low = made;
    }
    return Math.max(0, low - (max - low) * 0.03);
  }
}
