// The information plane: the path of every run.
"use strict";

// No series has these: two greys, red and black (white on a dark page).
const REGIME_COLORS = [
  "color-mix(in srgb, var(--muted) 35%, var(--paper))",
  "var(--bad)",
  "var(--muted)",
  "var(--ink)",
];

function planeFigure() {
  const { ways, means, borders, regimes } = DATA.plane;
  const alt =
    "Information plane. " +
    DATA.series
      .map((s, i) => {
        const [a, b] = [means[i][0], means[i].at(-1)];
        if (!a) return `${s.name}: not recorded`;
        return `${s.name}: from H(Z|X) ${short(a[1])}, I(X;Z) ${short(a[2])} at iteration ${a[0]} to ${short(b[1])}, ${short(b[2])} at ${b[0]}, ${regimeName(b)}`;
      })
      .join("; ") +
    ". Arrow keys step through the points.";
  return figure(
    DATA.runs.length > 1 ? "Paths of the runs" : "Path of the run",
    alt,
    (root, width, tip) => {
      const height = Math.min(600, Math.max(300, width * 0.74));
      resize(root, width, height);
      const shown = DATA.series.map((_, i) => i).filter((i) => !HIDDEN.has(i) && means[i].length);
      const points = shown.flatMap((i) => DATA.series[i].runs.flatMap((r) => ways[r]));
      if (!points.length) return;
      const xs = points.map((p) => p[1]),
        ys = points.map((p) => p[2]);
      if (borders) {
        xs.push(borders.x, 0);
        ys.push(borders.y, 0);
      }
      const spread = (v) => {
        const [l, h] = [Math.min(...v), Math.max(...v)];
        return [l < 0 ? l * 1.1 : l, h + (h - l || Math.abs(h) || 1) * 0.2];
      };
      const box = { left: 46, right: width - 12, top: 24, bottom: height - 40 };
      const sx = xAxis(root, box, spread(xs), "H(Z|X), nats per token");
      const y = { ends: spread(ys), isLog: false, unit: "I(X;Z), nats per token" };
      const sy = yAxis(root, box, y, "number");
      const place = (p) => [sx(p[1]), sy(p[2])];
      if (borders) drawRegimes(root, box, sx(borders.x), sy(borders.y), regimes);
      const stops = [];
      for (const i of shown) {
        for (const r of DATA.series[i].runs) {
          if (DATA.series[i].runs.length > 1)
            root.append(polyline(ways[r].map(place), color(i), 1, { opacity: 0.35 }));
        }
        const way = means[i];
        root.append(polyline(way.map(place), color(i), 2.4));
        way.forEach((p, k) => {
          const age = way.length > 1 ? k / (way.length - 1) : 1;
          root.append(
            mark(shape(i), sx(p[1]), sy(p[2]), 2.5 + 2.5 * age, {
              fill: k ? color(i) : "var(--paper)",
              stroke: color(i),
              "stroke-width": 1.5,
              opacity: 0.45 + 0.55 * age,
            }),
          );
          stops.push({ p, i });
        });
      }
      numberLasts(
        root,
        shown.map((i) => means[i]),
        place,
      );
      planeCursor(root, tip, width, stops, sx, sy);
    },
    {
      keys: planeKeys,
      numbers: () =>
        table(
          ["series", "iteration", "H(Z|X)", "I(X;Z)", "regime"],
          DATA.series.flatMap((s, i) =>
            means[i].map((p) => [s.name, String(p[0]), short(p[1]), short(p[2]), regimeName(p)]),
          ),
        ),
    },
  );
}

// Iterations beside the last points: not on their own path, nor on another's number.
function numberLasts(root, ways, place) {
  const taken = ways.map((way) => place(way.at(-1)));
  for (const way of ways) {
    const [x, y] = place(way.at(-1));
    const from = place(way.at(-2) || way.at(-1))[0];
    const sides = [
      [9, 4, "start"],
      [-9, 4, "end"],
      [0, -9, "middle"],
      [0, 18, "middle"],
    ];
    if (from > x) sides.unshift(sides.splice(1, 1)[0]);
    const isFree = ([dx, dy]) =>
      taken.every(([a, b]) => Math.abs(a - x - 2 * dx) > 14 || Math.abs(b - y - dy + 4) > 12);
    const [dx, dy, anchor] = sides.find(isFree) || sides[0];
    taken.push([x + 2 * dx, y + dy - 4]);
    root.append(
      caption(x + dx, y + dy, `${way.at(-1)[0]}`, { class: "label", "text-anchor": anchor }),
    );
  }
}

function planeKeys() {
  const shown = DATA.series.map((_, i) => i).filter((i) => !HIDDEN.has(i));
  const isMean = shown.some((i) => DATA.series[i].runs.length > 1);
  return [
    ...seriesKeys(shown),
    isMean ? key(lineSample("thin"), "single runs") : null,
    markKey("circle", "first, hollow; later ones larger", {
      fill: "var(--paper)",
      stroke: "currentColor",
    }),
    key("n", "iteration of the last point"),
  ].filter(Boolean);
}

function regimeName([, x, y]) {
  const { borders, regimes } = DATA.plane;
  return borders ? regimes[(y < borders.y ? 1 : 0) + (x < borders.x ? 2 : 0)] : "";
}

function drawRegimes(root, box, x, y, regimes) {
  const corners = [
    [x, box.right, box.top, y],
    [x, box.right, y, box.bottom],
    [box.left, x, box.top, y],
    [box.left, x, y, box.bottom],
  ];
  corners.forEach(([left, right, top, bottom], i) => {
    if (right <= left || bottom <= top) return;
    const isLeft = i > 1;
    // Where there is no room for two names side by side, one stands higher.
    const rise = isLeft && box.right - box.left < 300 ? 22 : 8;
    root.append(
      rectangle(left, top, right - left, bottom - top, { fill: REGIME_COLORS[i], opacity: 0.07 }),
      caption(isLeft ? left + 6 : right - 6, i % 2 ? bottom - rise : top + 16, regimes[i], {
        "text-anchor": isLeft ? "start" : "end",
        class: "label",
        fill: REGIME_COLORS[i],
        opacity: 0.9,
      }),
    );
  });
  for (const [x1, x2, y1, y2] of [
    [x, x, box.top, box.bottom],
    [box.left, box.right, y, y],
  ]) {
    root.append(segment(x1, y1, x2, y2, { stroke: "var(--muted)", "stroke-dasharray": "5 4" }));
  }
}

function planeCursor(root, tip, width, stops, sx, sy) {
  const layer = svg("g", {});
  root.append(layer);
  let now = -1;
  const go = (k) => {
    now = (k + stops.length) % stops.length;
    const { p, i } = stops[now];
    layer.replaceChildren(
      svg("circle", {
        cx: sx(p[1]),
        cy: sy(p[2]),
        r: 8,
        fill: "none",
        stroke: "var(--ink)",
        "stroke-width": 1.5,
      }),
    );
    show(tip, sx(p[1]), sy(p[2]), width, [
      el("b", `iteration ${p[0]}`),
      tipRow(color(i), DATA.series[i].name, regimeName(p)),
      tipRow(null, "H(Z|X)", short(p[1])),
      tipRow(null, "I(X;Z)", short(p[2])),
    ]);
  };
  const leave = () => {
    now = -1;
    layer.replaceChildren();
    hide(tip);
  };
  root.onpointermove = (event) => {
    const at = root.getBoundingClientRect(),
      x = event.clientX - at.left,
      y = event.clientY - at.top;
    const far = stops.map(({ p }) => Math.hypot(sx(p[1]) - x, sy(p[2]) - y));
    const best = far.indexOf(Math.min(...far));
    if (far[best] < 40) go(best);
    else leave();
  };
  root.onpointerleave = root.onblur = leave;
  root.onkeydown = (event) => {
    if (event.key === "ArrowRight") go(now + 1);
    else if (event.key === "ArrowLeft") go(now < 0 ? stops.length - 1 : now - 1);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  };
}
