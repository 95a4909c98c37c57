// Parts of every figure: caption, drawing, tooltip, cursor, table of numbers.
"use strict";

// Marks around (0, 0), as points.
const OUTLINES = {
  triangle: "0,-1.3 1.2,0.9 -1.2,0.9",
  diamond: "0,-1.4 1.4,0 0,1.4 -1.4,0",
  cross:
    "-1,-0.4 -0.4,-0.4 -0.4,-1 0.4,-1 0.4,-0.4 1,-0.4 1,0.4 0.4,0.4 0.4,1 -0.4,1 -0.4,0.4 -1,0.4",
};

function mark(shape, x, y, r, attributes) {
  if (shape === "square")
    return svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...attributes });
  const points = OUTLINES[shape];
  if (!points) return svg("circle", { cx: x, cy: y, r, ...attributes });
  return svg("polygon", {
    points: points.replace(/(\S+),(\S+)/g, (_, a, b) => `${x + a * r},${y + b * r}`),
    ...attributes,
  });
}

// A figure. `keys`: function that makes its legend, see `key`.
function figure(title, alt, draw, { keys, numbers = null }) {
  const root = svg("svg", { role: "img", tabindex: "0", "aria-label": alt });
  const tip = el("div.tip", { role: "status", hidden: true });
  const holder = el("div", root);
  const legend = el("div.legend");
  const node = el("figure", el("figcaption", el("h3", title), legend), holder, tip);
  if (numbers) {
    const place = el("div");
    node.append(
      el(
        "details.data",
        {
          ontoggle: () =>
            place.replaceChildren(...scrollBox(`Numbers of ${title}`, false, numbers())),
        },
        el("summary", "Numbers"),
        place,
      ),
    );
  }
  const again = responsive(holder, (width) => {
    root.replaceChildren();
    legend.replaceChildren(...keys());
    hide(tip);
    draw(root, width, tip);
  });
  REDRAW.push(again);
  return node;
}

// Entries of a legend: a sample of what is drawn, and what it means.
const key = (sample, text) => el("span.entry", { title: text }, sample, el("span.what", text));
const sampleBox = (...shapes) =>
  svg("svg", { class: "key", viewBox: "0 0 24 10", "aria-hidden": "true" }, shapes);

function lineSample(style, dash = STYLES[style].dash, stroke = lineColor(style)) {
  const { width, opacity } = STYLES[style];
  const line = { x1: 0, x2: 24, y1: 5, y2: 5, stroke, "stroke-width": width, opacity };
  return sampleBox(svg("line", { ...line, "stroke-dasharray": dash }));
}

// Of several series every one has such lines; a reference that they share is grey.
const lineColor = (style) => (ONE && style !== "reference" ? color(0) : "currentColor");

// The colour and the mark of a series are the same on the whole page.
const seriesSample = (i) =>
  sampleBox(
    segment(0, 5, 24, 5, { stroke: color(i), "stroke-width": 2 }),
    mark(shape(i), 12, 5, 3.4, { fill: color(i) }),
  );
const seriesKey = (i) => key(seriesSample(i), DATA.series[i].name);
const seriesKeys = (numbers) => (ONE ? [] : numbers.map(seriesKey));
const markKey = (name, text, attributes) =>
  key(sampleBox(mark(name, 12, 5, 3.6, { fill: "currentColor", ...attributes })), text);
const colorKey = (paint, text) => key(el("span.swatch", { "--c": paint }), text);

const hide = (tip) => {
  tip.hidden = true;
};
function show(tip, x, y, width, rows) {
  tip.replaceChildren(...rows);
  tip.hidden = false;
  const parent = tip.parentNode,
    left = tip.previousSibling.offsetLeft;
  const wanted = x > width / 2 ? x - tip.offsetWidth - 14 : x + 14;
  tip.style.left = `${Math.max(4, Math.min(left + wanted, parent.clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${tip.previousSibling.offsetTop + Math.max(0, y)}px`;
}

const tipRow = (paint, name, value) =>
  el(
    "div",
    paint && el("span.swatch", { "--c": paint }),
    el("span.name", name),
    el("b.value", value),
  );

// A cursor that stops at `stops` (in pixels): pointer, arrow keys, Home, End, Escape.
function cursor(root, stops, at, leave) {
  let now = -1;
  const go = (i) => {
    now = Math.max(0, Math.min(stops.length - 1, i));
    at(now);
  };
  root.onpointermove = (event) => {
    const x = event.clientX - root.getBoundingClientRect().left;
    let best = 0;
    stops.forEach((s, i) => {
      if (Math.abs(s - x) < Math.abs(stops[best] - x)) best = i;
    });
    go(best);
  };
  root.onpointerleave = root.onblur = () => {
    now = -1;
    leave();
  };
  root.onkeydown = (event) => {
    const moves = {
      ArrowRight: now + 1,
      ArrowLeft: now < 0 ? stops.length - 1 : now - 1,
      Home: 0,
      End: stops.length - 1,
    };
    if (event.key in moves) go(moves[event.key]);
    else if (event.key === "Escape") {
      now = -1;
      leave();
    } else return;
    event.preventDefault();
  };
}
