// Elements and numbers. Whatever a run wrote becomes text nodes, never markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return fill(element, attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

let controls = 0;

export function labelled(text, control, attributes = {}) {
  control.id ||= `control-${(controls += 1)}`;
  return el("span", { class: "field", ...attributes }, el("label", { for: control.id }, text), control);
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${number(value, 3)} ${units[unit]}`;
}

export function time(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

export function table(header, rows, label) {
  const numeric = header.map((_, i) => rows.length > 0 && rows.every((row) => typeof (row[i] ?? 0) === "number"));
  const head = el("tr", {}, ...header.map((name, i) => el("th", { scope: "col", class: numeric[i] ? "number" : null }, name)));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell) =>
    el("td", { class: typeof cell === "number" ? "number" : null }, typeof cell === "number" ? number(cell) : cell ?? "–"))));
  return el("div", { class: "scroll" }, el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, ...body)));
}
