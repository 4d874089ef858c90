// Elements of the page. What comes from the cluster gets into it here alone, as text nodes and
// attributes: never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// A row of `cells`, each a text, an element, or [class, text or element].
export function row(cells, attributes = {}) {
  return h("tr", attributes, cells.map((cell) =>
    Array.isArray(cell) ? h("td", {class: cell[0]}, cell[1]) : h("td", {}, cell)));
}

// `header`: names of columns; one that begins with "#" is of numbers.
export function table(header, rows, empty) {
  if (rows.length === 0) return h("p", {class: "quiet"}, empty);
  const names = header.map((name) =>
    name.startsWith("#") ? h("th", {class: "n", scope: "col"}, name.slice(1)) : h("th", {scope: "col"}, name));
  return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, names)), h("tbody", {}, rows)));
}

export function facts(pairs) {
  return h("dl", {class: "facts"}, pairs.filter(Boolean).map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// Makes `from` what `to` is and keeps the nodes that stay, so that a selection, the focus and where
// a table was scrolled to outlive an update.
export function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const {name} of [...from.attributes]) {
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  }
  for (const {name, value} of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  const old = [...from.childNodes];
  const wanted = [...to.childNodes];
  for (const node of old.slice(wanted.length)) node.remove();
  wanted.forEach((node, i) => (i < old.length ? morph(old[i], node) : from.append(node)));
}
