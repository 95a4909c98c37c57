// Line charts over iterations: bands, reference lines, values under the cursor.
"use strict";

const HIDDEN = new Set(); // numbers of the series that are switched off
const STYLES = {
  main: { width: 2, dash: null, opacity: 1 },
  thin: { width: 1.2, dash: null, opacity: 0.6 },
  reference: { width: 1.4, dash: "6 4", opacity: 0.9 },
  recorded: { width: 1, dash: null, opacity: 0.3 }, // behind a smoothed line
};
// Tell the main lines of one panel apart: a series has one colour.
const DASHES = [null, "8 3", "2 3", "10 3 2 3", "1 5"];
// Most marks on a line that is drawn without a mark per point.
const MAX_MARKS = 8;

// The ends of a curve's band, or null where it has none.
function band(curve) {
  if (curve.num_runs > 1 && LOOK.band === "error" && curve.error) {
    return [
      curve.mean.map((m, i) => m - curve.error[i]),
      curve.mean.map((m, i) => m + curve.error[i]),
    ];
  }
  return curve.low ? [curve.low, curve.high] : null;
}

// Curves of a panel: one per line and series, without those that are switched off.
function panelCurves(panel) {
  const shown = [];
  for (const line of panel.lines) {
    const curves = DATA.curves[line.metric];
    const dash = dashOf(panel, line);
    const isShared =
      line.style === "reference" &&
      curves.every((c) => !c || c.mean.at(-1) === curves.find(Boolean).mean.at(-1));
    curves.forEach((curve, i) => {
      if (!curve || HIDDEN.has(i) || !line.series.includes(i)) return;
      if (isShared && shown.some((f) => f.line === line)) return;
      shown.push({
        ...curve,
        line,
        dash,
        series: isShared ? null : i,
        name: isShared ? line.label : DATA.series[i].name,
        color: isShared ? "var(--muted)" : color(i),
        mark: shape(i),
        style: line.style,
        metric: line.metric,
        label: line.label,
      });
    });
  }
  return shown;
}

function dashOf(panel, line) {
  const mains = panel.lines.filter((l) => l.style === "main");
  const own = line.style === "main" ? DASHES[mains.indexOf(line) % DASHES.length] : null;
  return own || STYLES[line.style].dash;
}

// The vertical axis, see verticalAxis: its grid and label; returns its scale.
function yAxis(root, box, y, kind) {
  const height = y.isLog ? Math.log10 : (v) => v;
  const [low, high] = y.ends.map(height);
  const sy = (v) => box.bottom - ((height(v) - low) / (high - low)) * (box.bottom - box.top);
  for (const t of y.isLog ? logTicks(...y.ends) : ticks(...y.ends, 4)) {
    const text = kind === "share" ? `${Number((100 * t).toPrecision(6))} %` : tickText(t);
    root.append(
      segment(box.left, sy(t), box.right, sy(t), { class: "rule" }),
      caption(box.left - 7, sy(t) + 4, text, { "text-anchor": "end" }),
    );
  }
  root.append(caption(0, 11, y.unit));
  return sy;
}

// The horizontal axis from x[0] to x[1]: its ticks and name; returns its scale.
function xAxis(root, box, x, name = "iteration") {
  // A single iteration stands in the middle.
  const share = (v) => (x[0] === x[1] ? 0.5 : (v - x[0]) / (x[1] - x[0]));
  const sx = (v) => box.left + share(v) * (box.right - box.left);
  const round = x[0] === x[1] ? [] : ticks(...x, Math.max(2, (box.right - box.left) / 75));
  const whole = round.filter((t) => name !== "iteration" || Number.isInteger(t));
  // One number gives no scale: then the ends, which may be one.
  for (const t of whole.length > 1 ? whole : new Set(x)) {
    root.append(
      segment(sx(t), box.bottom, sx(t), box.bottom + 4, { class: "axis" }),
      caption(sx(t), box.bottom + 17, tickText(t), { "text-anchor": "middle" }),
    );
  }
  root.append(
    segment(box.left, box.bottom, box.right, box.bottom, { class: "axis" }),
    caption(box.right, box.bottom + 33, name, { "text-anchor": "end" }),
  );
  return sx;
}

function describe(panel, curves) {
  const format = FORMATS[panel.kind];
  const main = curves.filter((c) => c.style !== "thin");
  const parts = (main.some((c) => c.style === "main") ? main : curves)
    .map(
      (c) =>
        `${c.name}${c.label === panel.title ? "" : ` ${c.label}`}: ${format(c.mean[0])} at iteration ${c.at[0]} to ${format(c.mean.at(-1))} at ${c.at.at(-1)}`,
    );
  return `${panel.title}, ${panel.unit}, over iterations. ${parts.join("; ")}. Arrow keys read single values.`;
}

function lineChart(panel, curvesOf = panelCurves, more = {}) {
  const draw = (root, width, tip) => {
    const curves = curvesOf(panel).map(smoothed),
      height = 236;
    resize(root, width, height);
    if (!curves.length) {
      root.append(
        caption(width / 2, 110, "all series are switched off", { "text-anchor": "middle" }),
      );
      return;
    }
    const values = curves.flatMap((c) => [
      ...c.mean,
      ...(c.recorded && c.style === "main" ? c.recorded : []),
      ...(c.style === "main" && band(c) ? band(c).flat() : []),
    ]);
    const steps = curves.flatMap((c) => c.at);
    const box = { left: 46, right: width - 10, top: 28, bottom: height - 40 };
    const sx = xAxis(root, box, [Math.min(...steps), Math.max(...steps)]);
    const sy = yAxis(root, box, verticalAxis(values, panel.kind, panel.unit), panel.kind);
    for (const c of curves) if (c.style === "main" && band(c)) drawBand(root, c, sx, sy);
    for (const c of curves)
      if (c.recorded && c.style === "main")
        drawCurve(root, { ...c, mean: c.recorded, style: "recorded" }, sx, sy, box);
    for (const c of curves) drawCurve(root, c, sx, sy, box);
    hover(root, tip, width, box, curves, sx, sy, FORMATS[panel.kind]);
  };
  const curves = curvesOf(panel);
  return figure(panel.title, describe(panel, curves), draw, {
    keys: () => chartKeys(panel, curvesOf(panel)),
    numbers: () => numbers(panel, curvesOf(panel)),
    ...more,
  });
}

// The legend of a chart: its series, then its kinds of line where there are several.
function chartKeys(panel, curves) {
  const series = [...new Set(curves.map((c) => c.series).filter((i) => i !== null))];
  const lines = panel.lines.length > 1 ? panel.lines : [];
  return [
    ...seriesKeys(series),
    ...lines.map((l) => key(lineSample(l.style, dashOf(panel, l)), l.label)),
  ];
}

function drawBand(root, curve, sx, sy) {
  const [low, high] = band(curve);
  const there = curve.at.map((x, i) => `${sx(x)},${sy(high[i])}`);
  const back = curve.at.map((x, i) => `${sx(x)},${sy(low[i])}`).reverse();
  root.append(
    svg("polygon", { points: [...there, ...back].join(" "), fill: curve.color, opacity: 0.16 }),
  );
}

function drawCurve(root, curve, sx, sy, box) {
  const style = STYLES[curve.style];
  const xs = curve.at.map(sx),
    ys = curve.mean.map(sy);
  if (curve.style === "reference") {
    // a level: from edge to edge
    xs.unshift(box.left);
    ys.unshift(ys[0]);
    xs.push(box.right);
    ys.push(ys.at(-1));
  }
  root.append(
    polyline(
      xs.map((x, i) => [x, ys[i]]),
      curve.color,
      style.width,
      {
        "stroke-dasharray": curve.style === "recorded" ? null : curve.dash,
        opacity: style.opacity,
      },
    ),
  );
  // A single point has no line.
  const isAlone = curve.at.length === 1 && curve.style === "thin";
  if (curve.style !== "main" && !isAlone) return;
  if (xs.length > 24 && ONE) return;
  // Of a long line a few points: series are told apart without their colour.
  const every = xs.length <= 24 ? 1 : Math.ceil(xs.length / MAX_MARKS);
  xs.forEach((x, i) => {
    if (i % every === 0) root.append(mark(curve.mark, x, ys[i], 3, { fill: curve.color }));
  });
}

function hover(root, tip, width, box, curves, sx, sy, format) {
  const steps = [...new Set(curves.flatMap((c) => c.at))].sort((a, b) => a - b);
  const layer = svg("g", {});
  root.append(
    rectangle(box.left, box.top, box.right - box.left, box.bottom - box.top, {
      fill: "transparent",
    }),
    layer,
  );
  cursor(
    root,
    steps.map(sx),
    (i) => {
      const step = steps[i],
        rows = [el("b", `iteration ${step}`)];
      layer.replaceChildren(
        segment(sx(step), box.top, sx(step), box.bottom, {
          class: "axis",
          "stroke-dasharray": "2 3",
        }),
      );
      for (const c of curves) {
        const j = c.at.indexOf(step);
        if (j < 0) continue;
        const ends = c.style === "main" && band(c);
        const range = ends ? ` (${format(ends[0][j])} – ${format(ends[1][j])})` : "";
        layer.append(
          svg("circle", {
            cx: sx(step),
            cy: sy(c.mean[j]),
            r: 4,
            fill: c.color,
            stroke: "var(--paper)",
            "stroke-width": 1.5,
          }),
        );
        const hasLines =
          c.line && c.name !== c.label && new Set(curves.map((o) => o.line)).size > 1;
        const label = hasLines ? `${c.name}, ${c.label}` : c.name;
        const recorded = c.recorded ? `, recorded ${format(c.recorded[j])}` : "";
        rows.push(tipRow(c.color, label, format(c.mean[j]) + range + recorded));
      }
      show(tip, sx(step), box.top, width, rows);
    },
    () => {
      layer.replaceChildren();
      hide(tip);
    },
  );
}

const columnName = (c) =>
  ONE ? c.label : c.name === c.label ? c.name : `${c.name}: ${c.label}`;

function numbers(panel, curves) {
  const format = FORMATS[panel.kind];
  const steps = [...new Set(curves.flatMap((c) => c.at))].sort((a, b) => a - b);
  return table(
    ["iteration", ...curves.map(columnName)],
    steps.map((step) => [
      String(step),
      ...curves.map((c) => {
        const i = c.at.indexOf(step);
        return i < 0 ? "" : format(c.mean[i]);
      }),
    ]),
  );
}
