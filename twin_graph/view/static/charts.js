// Plots by uPlot: one way to make them, so that all look alike, follow the width and the colours, and name their units.

import uPlot from "./uplot/uPlot.esm.js";
import { brief, h, number } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const plots = new Set();
const QUIET = 0.72;
/** What a series is known by: runs may have one name, and then have two colours. */
const known = (series) => `${series.name} ${series.colour} ${series.dash ?? ""}`;
dark.addEventListener("change", () => plots.forEach((plot) => plot.rebuild()));

/** A colour of the style sheet, as it is now. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Red, green and blue of a colour of the style sheet. */
function channels(name) {
  const hex = colour(name);
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** A colour of the style sheet, so faint that others show through. */
export const faint = (name, alpha) => `rgba(${channels(name).join(", ")}, ${alpha})`;

/** A colour of the style sheet, mixed with that of the paper, so that areas are quieter than lines. */
function quiet(name, part) {
  const paper = channels("paper");
  return `rgb(${channels(name)
    .map((value, i) => Math.round(part * value + (1 - part) * paper[i]))
    .join(", ")})`;
}

export const HUES = 8;
/** Colours of things that have no colour of their own, by their place; where these are used up, lines are dashed. */
export const several = (place) => `hue${place % HUES}`;
const DASHES = [undefined, [2, 3], [6, 3], [6, 3, 2, 3], [12, 3], [12, 3, 2, 3], [12, 3, 6, 3], [12, 3, 2, 3, 2, 3]];
/** Dashes of a line by its place; `second` is that of a second learner, which has the colour of the first. */
export const dashed = (place, second = 0) => DASHES[(2 * Math.floor(place / HUES) + second) % DASHES.length];

/** A line's colour and dashes as a background, for the swatch that stands for it. */
export function swatched(name, dash) {
  const one = `var(--${name})`; // which follows the colours of the page
  if (!dash) return one;
  let end = 0;
  const parts = dash.map((length, i) => `${i % 2 ? "transparent" : one} ${end}px ${(end += length)}px`);
  return `repeating-linear-gradient(90deg, ${parts.join(", ")})`;
}

export const UNITS = { agent_steps: "agent steps", updates: "updates" };

/**
 * A plot with its legend, which shows the values under the cursor and switches series on and off.
 *
 * what: {
 *   label      what it shows, for those who do not see it
 *   unit       of the y axis, shown above it
 *   height
 *   axisSize   width of the y axis, where plots are to be in line
 *   x          name of the x axis, with its unit
 *   series     [{name, colour, dash, width, fill, quiet, dots, format, hidden (from the legend), line: false,
 *              gaps: true (where a value is null; otherwise lines lead over it)}]
 *   bands      [[upper, lower, colour]], numbers of series from 1
 *   range      (u, min, max) => [min, max] of the y axis
 *   xRange     the same of the x axis
 *   draw       (u) => painted over the series; with the values that the legend shows from `read`
 *   read       (u, idx) => element or text, in place of the legend's values
 *   sync       plots of one name share cursor and zoom
 *   click      (x) => at a click
 *   fixedKeys  the legend names what is painted, and switches nothing
 * }
 */
export class Plot {
  constructor(host, what) {
    this.host = host;
    this.what = what;
    this.data = null;
    this.hidden = new Set(); // series, as they are known: their places change with the data
    this.values = [];
    this.keys = h("div", { class: "legend" });
    this.place = h("div", { class: "plot", role: "img", "aria-label": what.label });
    host.replaceChildren(this.keys, this.place);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.place);
    plots.add(this);
  }

  /** Shows other data: columns, x first. What was zoomed stays so. */
  show(data, what = {}) {
    Object.assign(this.what, what);
    this.data = data;
    const { x, series, bands } = this.what;
    const looks = JSON.stringify([x, bands, series.map((one) => [one.name, one.colour, one.dash, one.dots])]);
    const isAnother = looks !== this.looks;
    this.looks = looks;
    if (!this.plot || isAnother) {
      this.rebuild();
      return;
    }
    const { min, max } = this.plot.scales.x;
    const isZoomed = this.isZoomed();
    this.plot.setData(data, !isZoomed);
    if (isZoomed) this.plot.setScale("x", { min, max });
  }

  isZoomed() {
    const xs = this.plot.data[0];
    const { min, max } = this.plot.scales.x;
    return xs.length > 1 && (min > xs[0] || max < xs[xs.length - 1]);
  }

  rebuild() {
    if (!this.data) return;
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), this.data, this.place);
    this.legend();
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.what.height });
  }

  close() {
    this.observer.disconnect();
    this.plot?.destroy();
    plots.delete(this);
  }

  options() {
    const { what } = this;
    const ink = colour("soft");
    const grid = { stroke: colour("grid"), width: 1 };
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: ink, font, labelFont: font, grid, ticks: { show: false } };
    return {
      width: this.place.clientWidth || 600,
      height: what.height,
      padding: [8, 20, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, ...(what.xRange && { range: what.xRange }) },
        y: { range: (u, low, high) => (what.range ?? padded)(u, ...seen(u, what.series, low, high)) },
      },
      axes: [
        {
          ...axis,
          label: what.x,
          labelSize: 18,
          size: 26,
          space: 64,
          values: (u, ticks) => labels(ticks),
          grid: { show: false },
        },
        {
          ...axis,
          size: (u, values) => what.axisSize ?? 14 + 7 * Math.max(2, ...(values ?? []).map((text) => text.length)),
          space: 34,
          values: (u, ticks) => (what.ticks ? ticks.map(what.ticks) : labels(ticks)),
        },
      ],
      series: [
        {},
        ...what.series.map((one) => ({
          label: one.name,
          show: !this.hidden.has(known(one)),
          stroke: one.colour && colour(one.colour),
          width: one.width ?? 1.75,
          dash: one.dash,
          fill: one.fill && quiet(one.fill, one.quiet ?? QUIET),
          spanGaps: !one.gaps,
          paths: one.line === false ? () => null : undefined,
          points: {
            show: Boolean(one.dots),
            size: one.dots,
            width: 1.5,
            fill: one.dotFill ? colour(one.dotFill) : undefined,
          },
        })),
      ],
      bands: (what.bands ?? []).map(([upper, lower, name]) => ({
        series: [upper, lower],
        fill: faint(name, 0.18),
      })),
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: true },
        sync: what.sync && { key: what.sync, scales: ["x", null] },
      },
      hooks: {
        draw: what.draw ? [what.draw] : [],
        setCursor: [(u) => this.read(u)],
        ready: what.click ? [(u) => this.clickable(u)] : [],
      },
    };
  }

  clickable(u) {
    let from = null;
    u.over.addEventListener("mousedown", (event) => {
      from = event.clientX;
    });
    u.over.addEventListener("mouseup", (event) => {
      if (from !== null && Math.abs(event.clientX - from) < 3) this.what.click(u.posToVal(u.cursor.left, "x"));
      from = null;
    });
  }

  legend() {
    const { what } = this;
    this.at = h("span", { class: what.fixedKeys ? "at long" : "at" });
    this.values = [];
    const keys = what.series.map((one, i) => {
      if (one.hidden) return null;
      const swatch = h("i", { class: `swatch ${one.dots && one.line === false ? "dot" : one.dash ? "dashed" : ""}` });
      swatch.style.background = one.fill ? quiet(one.fill, one.quiet ?? QUIET) : swatched(one.colour, one.dash);
      if (what.fixedKeys || one.silent) return h("span", { class: "key" }, swatch, one.name);
      const value = h("b");
      this.values[i] = value;
      return h(
        "button",
        {
          type: "button",
          class: "key",
          "aria-pressed": String(!this.hidden.has(known(one))),
          onclick: (event) => this.toggle(i, event.currentTarget),
        },
        swatch,
        one.name,
        value,
      );
    });
    this.keys.replaceChildren(
      ...(what.unit ? [h("span", { class: "unit" }, what.unit)] : []),
      ...keys.filter(Boolean),
      this.at,
    );
  }

  /** Shows or hides a series, with those that belong to it: the edges of its interval. */
  toggle(i, key) {
    const { series } = this.what;
    const isHidden = !this.hidden.has(known(series[i]));
    for (const one of [i, ...(series[i].with ?? [])]) {
      if (isHidden) this.hidden.add(known(series[one]));
      else this.hidden.delete(known(series[one]));
      this.plot.setSeries(one + 1, { show: !isHidden });
    }
    key.setAttribute("aria-pressed", String(!isHidden));
  }

  read(u) {
    const { idx } = u.cursor;
    const isInside = idx !== null && idx !== undefined && u.cursor.left >= 0;
    if (this.what.read) {
      this.at.replaceChildren(isInside ? this.what.read(u.posToVal(u.cursor.left, "x"), idx) : "");
      return;
    }
    this.at.textContent = isInside ? `at ${number(Math.round(u.data[0][idx]))} ${this.what.x}` : "";
    this.what.series.forEach((one, i) => {
      if (!this.values[i]) return;
      const value = isInside ? nearest(one.values ?? u.data[i + 1], idx) : null;
      this.values[i].textContent = value === null ? "" : (one.format ?? number)(value);
    });
  }
}

/** The value at a place of a column, or the nearest on a line through it: columns of one plot may have their own rows. */
function nearest(column, idx) {
  const isMissing = (at) => column[at] === null || column[at] === undefined;
  let before = idx;
  let after = idx;
  while (before >= 0 && isMissing(before)) before -= 1;
  while (after < column.length && isMissing(after)) after += 1;
  if (before < 0 || after >= column.length) return null; // before its beginning, or beyond its end
  return column[idx - before <= after - idx ? before : after];
}

/** Labels of an axis: brief, unless two would then be equal. */
export function labels(ticks) {
  const short = ticks.map(brief);
  return new Set(short).size === short.length ? short : ticks.map(number);
}

/** The lowest and highest value to be seen, with those of the points next to the window, to which lines lead. */
export function seen(u, series, low, high) {
  const [from, to] = u.series[0].idxs ?? [];
  const isMissing = (value) => value === null || value === undefined;
  series.forEach((one, i) => {
    if (from === undefined || one.line === false || !u.series[i + 1].show) return;
    const column = u.data[i + 1];
    for (const [at, step] of [
      [from, -1],
      [to, 1],
    ]) {
      let place = at;
      while (place >= 0 && place < column.length && isMissing(column[place])) place += step;
      const value = column[place];
      if (isMissing(value)) continue;
      low = isMissing(low) ? value : Math.min(low, value);
      high = isMissing(high) ? value : Math.max(high, value);
    }
  });
  return [low, high];
}

/** A little room above and below; also where all values are equal. */
function padded(u, low, high) {
  if (low === null || high === null || low === undefined) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** From 0, or from a lowest value below it. */
export function fromZero(u, low, high) {
  const [bottom, top] = [Math.min(0, (low ?? 0) * 1.08), Math.max(0, (high ?? 0) * 1.08)];
  return [bottom, top > bottom ? top : 1];
}
export const share = () => [0, 1];

/** A little room left and right, for dots at the edges. */
export const roomy = (u, low, high) => [low - (high - low) * 0.012, high + (high - low) * 0.012];

/** Columns with x of their own as columns of one x; each table is [x, column...], by rising x. */
export const joined = (tables) => uPlot.join(tables.filter((table) => table[0].length));

/** Sets of points and lines painted by hand are clipped to the plot. */
export function clipped(u, paint) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  paint(
    u.ctx,
    (x) => u.valToPos(x, "x", true),
    (y) => u.valToPos(y, "y", true),
    devicePixelRatio,
  );
  u.ctx.restore();
}
