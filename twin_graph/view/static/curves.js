// The plots that one run and several have in common: scores with their intervals, and lines of metrics.

import { Plot, UNITS, fromZero, joined } from "./charts.js";
import { h, put, score } from "./dom.js";

/** Of lines of metrics, those rows that have both values, by rising x. */
function pairs(metrics, x, y) {
  const columns = [[], []];
  const [xs, ys] = [metrics[x] ?? [], metrics[y] ?? []];
  for (let row = 0; row < xs.length; row += 1) {
    if (xs[row] === null || ys[row] === null || ys[row] === undefined) continue;
    columns[0].push(xs[row]);
    columns[1].push(ys[row]);
  }
  return columns;
}

/** The size of a dot where a point is alone and makes no line. */
const lone = (columns) => (columns[0].length < 2 ? 5 : 0);

/** Scores with their intervals; lines is [{scores, name, colour, dash}], others is [{columns, name, colour}]. */
export function learning(lines, others, x) {
  const tables = [];
  const series = [];
  const bands = [];
  const add = (columns, ...specifications) => {
    if (!columns[0].length) return;
    tables.push(columns);
    series.push(...specifications);
  };
  for (const { columns, name, colour } of others) {
    add(columns, { name, colour, width: 1.25, dots: lone(columns), format: score });
  }
  for (const { scores, name, colour, dash } of lines) {
    const first = series.length;
    const dots = scores[x].length < 150 ? 5 : 0;
    if (!scores.scheduled) {
      add([scores[x], scores.mean], { name, colour, dots: 8, dotFill: "paper", line: false, format: score });
      continue;
    }
    add(
      [scores[x], scores.low, scores.high, scores.mean],
      { name: `${name}, low`, colour, hidden: true, width: 0, gaps: true }, // one game has no interval
      { name: `${name}, high`, colour, hidden: true, width: 0, gaps: true },
      { name, colour, dash, width: 2, dots, format: score, with: [first, first + 1] },
    );
    bands.push([first + 2, first + 1, colour]);
  }
  return { data: tables.length ? joined(tables) : null, what: { series, bands, x: UNITS[x] } };
}

/** Some columns of metrics in one plot; lines is [{metrics, column, name, colour, dash}]. */
export function metric(lines, x, format) {
  const found = lines
    .map((line) => ({ ...line, columns: pairs(line.metrics, x, line.column) }))
    .filter((line) => line.columns[0].length);
  const series = found.map(({ name, colour, dash, columns }) => {
    return { name, colour, dash, width: 1.5, dots: lone(columns), format };
  });
  return {
    data: found.length ? joined(found.map((line) => line.columns)) : null,
    what: { series, x: UNITS[x], range: fromZero },
  };
}

/** Shows a plot in its place, made when it is first needed; plots has them by their places. Without data, says so. */
export function show(plots, place, { data, what }, fixed) {
  if (!data) {
    plots.get(place)?.close(); // the run began again
    plots.delete(place);
    put(place, h("p", { class: "note" }, "Too little is recorded yet."));
    return;
  }
  if (!plots.has(place)) plots.set(place, new Plot(place, { ...fixed, ...what }));
  plots.get(place).show(data, what);
}

/** Which x axis curves have, for all views alike. */
export const axis = { name: "agent_steps" };
