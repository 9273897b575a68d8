// Elements, and how numbers are written. Text goes in as text nodes alone: nothing that a run says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a", {href, class, onclick}, "text", child)`; properties that are null or false are left out. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same of an SVG element. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(isShown));
  return element;
}

const isShown = (child) => child !== null && child !== undefined && child !== false;

/** Gives an element other children, but leaves what says the same, at any depth: if it has the focus, it keeps it. */
export function renew(element, ...children) {
  const wanted = children.flat().filter(isShown);
  wanted.forEach((child, i) => {
    const there = element.childNodes[i];
    if (!there) element.append(child);
    else if (there.isEqualNode(child)) return;
    else if (isAlike(there, child)) renew(there, ...child.childNodes);
    else there.replaceWith(child);
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
}

/** Whether two elements differ in what is inside alone. A button's click may belong to its text. */
const isAlike = (one, other) =>
  one.nodeType === Node.ELEMENT_NODE &&
  one.nodeName !== "BUTTON" &&
  one.cloneNode(false).isEqualNode(other.cloneNode(false));

/** Gives an element other children. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat().filter(isShown));
  return element;
}

/** Numbers as people write them: never -0. */
const format = (options) => new Intl.NumberFormat("en", { signDisplay: "negative", ...options });
const whole = format({ maximumFractionDigits: 0 });
const short = format({ notation: "compact", maximumFractionDigits: 2 });
const small = format({ maximumSignificantDigits: 3 });
const fine = format({ maximumSignificantDigits: 4 });
const decimals = format({ minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const NONE = "–";
export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));
export const brief = (value) =>
  value === null || value === undefined ? NONE : (Math.abs(value) < 1 ? small : short).format(value);
export const percent = (value) => (value === null || value === undefined ? NONE : `${(100 * value).toFixed(1)}%`);

/** A measured number: whole part with separators, and as many decimals as tell something. */
export function number(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) >= 1000 ? whole.format(value) : fine.format(value);
}

/** A score, with two decimals as everywhere else. */
export const score = (value) => (value === null || value === undefined ? NONE : decimals.format(value));

export const counted = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
export const when = (time) => time.slice(0, 19).replace("T", " ");

/** A small curve of [x, y] points. */
export function spark(points) {
  const [width, height] = [104, 26];
  if (!points || points.length < 2) return h("span", { class: "soft" }, NONE);
  const xs = points.map((point) => point[0]);
  const ys = points.map((point) => point[1]);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const x = (value) => 2 + ((value - left) / (right - left || 1)) * (width - 6);
  const y = (value) => height - 3 - ((value - low) / (high - low || 1)) * (height - 6);
  const at = points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`);
  const [lastX, lastY] = at.at(-1).split(",");
  return s(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `learning curve from ${score(ys[0])} to ${score(ys.at(-1))}`,
    },
    s("polyline", { points: at.join(" ") }),
    s("circle", { cx: lastX, cy: lastY, r: 2.2 }),
  );
}

/** The state of a run, by a dot and a word. */
export const state = (summary) => h("span", { class: `state ${summary.state}` }, summary.state);

/** Runs `work` now and whenever it is asked to, but never twice at once. In between it rests, long after long work. */
export function throttled(work, restMilliseconds) {
  let isBusy = false;
  let isAsked = false;
  return async function ask() {
    isAsked = true;
    if (isBusy) return;
    isBusy = true;
    while (isAsked) {
      isAsked = false;
      const began = performance.now();
      await work();
      const rest = Math.max(restMilliseconds, 5 * (performance.now() - began));
      await new Promise((resume) => setTimeout(resume, rest));
    }
    isBusy = false;
  };
}
