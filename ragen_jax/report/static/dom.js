// Elements, numbers and colours for the other files. Text of runs is only ever set as text
// (textContent), never parsed as markup.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const CELLS = JSON.parse(document.getElementById("cells").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // A string becomes a text node here, whatever it holds.
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return node;
}
// `name`: "tag.class.class"; attributes, if any, come before the children.
function el(name, ...parts) {
  const [tag, ...classes] = name.split(".");
  const hasAttributes = parts[0] && parts[0].constructor === Object;
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  return fill(node, hasAttributes ? parts.shift() : {}, parts);
}
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);
const segment = (x1, y1, x2, y2, more) => svg("line", { x1, y1, x2, y2, ...more });
const rectangle = (x, y, width, height, more) => svg("rect", { x, y, width, height, ...more });
const caption = (x, y, text, more) => svg("text", { x, y, ...more }, text);
function resize(root, width, height) {
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  root.setAttribute("height", height);
}
// Lines through points [x, y].
const polyline = (points, stroke, width, more) =>
  svg("polyline", {
    points: points.map((p) => p.join()).join(" "),
    fill: "none",
    stroke,
    "stroke-width": width,
    "stroke-linejoin": "round",
    ...more,
  });

// One series needs no legend: the head of the page names it.
const ONE = DATA.series.length === 1;
// Colours come back after six series, then with another mark.
const color = (i) => `var(--s${i % 6})`;
const shape = (i) => MARKS[(i + Math.floor(i / 6)) % MARKS.length];
const MARKS = ["circle", "square", "triangle", "diamond", "cross"];

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const FORMATS = {
  number: short,
  share: percent,
  seconds: (value) => `${short(value)} s`,
};

function table(head, rows) {
  return el(
    "table",
    el(
      "thead",
      el(
        "tr",
        head.map((x) => el("th", { scope: "col" }, x)),
      ),
    ),
    el(
      "tbody",
      rows.map(([name, ...values]) =>
        el(
          "tr",
          el("th", { scope: "row" }, name),
          values.map((x) => el("td", x)),
        ),
      ),
    ),
  );
}

// A table, or what else may be wider than the page, in a box that scrolls. Keyboards reach
// the box, and its arrow keys scroll it.
function scrollBox(label, tall, ...content) {
  const box = el(
    tall ? "div.scroll.tall" : "div.scroll",
    { tabindex: "0", role: "region", "aria-label": label },
    content,
  );
  const frame = el("div.frame", box);
  watchEdges(box);
  return [frame, el("p.hint", { "aria-hidden": "true" }, "more columns to the side: scroll ↔")];
}

// Draws into a box again whenever its width changes.
function responsive(node, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.round(node.clientWidth);
    if (now && now !== width) draw((width = now));
  }).observe(node);
  return () => width && node.isConnected && draw(width);
}
