// Figures with axes of their own: the information plane, gradient buckets, alarms.
"use strict";

const REGIME_COLORS = ["var(--good)", "var(--bad)", "var(--s4)", "var(--s3)"];

function planeFigure() {
  const { ways, means, borders, regimes } = DATA.plane;
  const alt = "Information plane. " + DATA.series.map((s, i) => {
    const [a, b] = [means[i][0], means[i].at(-1)];
    if (!a) return `${s.name}: not recorded`;
    return `${s.name}: from H(Z|X) ${short(a[1])}, I(X;Z) ${short(a[2])} at iteration ${a[0]} to ${short(b[1])}, ${short(b[2])} at ${b[0]}, ${regimeName(b)}`;
  }).join("; ") + ". Arrow keys step through the points.";
  return figure("Where thoughts are", alt, (root, width, tip) => {
    const height = Math.min(540, Math.max(300, width * 0.74));
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("height", height);
    const shown = DATA.series.map((_, i) => i).filter((i) => !HIDDEN.has(i) && means[i].length);
    const points = shown.flatMap((i) => DATA.series[i].runs.flatMap((r) => ways[r]));
    if (!points.length) return;
    const xs = points.map((p) => p[1]), ys = points.map((p) => p[2]);
    if (borders) { xs.push(borders.x, 0); ys.push(borders.y, 0); }
    const spread = (v) => { const [l, h] = [Math.min(...v), Math.max(...v)]; return [l < 0 ? l * 1.1 : l, h + (h - l) * 0.12]; };
    const box = { left: 46, right: width - 12, top: 24, bottom: height - 40 };
    const x = spread(xs), y = spread(ys);
    const [sx, sy] = axes(root, box, x, y, "number", "I(X;Z), nats per token", "H(Z|X), nats per token");
    if (borders) drawRegimes(root, box, sx(borders.x), sy(borders.y), regimes);
    const stops = [];
    for (const i of shown) {
      for (const r of DATA.series[i].runs) {
        if (DATA.series[i].runs.length > 1) root.append(path(ways[r], sx, sy, color(i), 1, 0.35));
      }
      const way = means[i];
      root.append(path(way, sx, sy, color(i), 2.4, 1));
      way.forEach((p, k) => {
        const age = way.length > 1 ? k / (way.length - 1) : 1;
        root.append(mark(MARKS[i % 6], sx(p[1]), sy(p[2]), 2.5 + 2.5 * age, { fill: k ? color(i) : "var(--paper)", stroke: color(i), "stroke-width": 1.5, opacity: 0.45 + 0.55 * age }));
        stops.push({ p, i });
      });
      const last = way.at(-1);
      root.append(svg("text", { class: "label", x: sx(last[1]) + 9, y: sy(last[2]) + 4 }, `${last[0]}`));
    }
    planeCursor(root, tip, width, stops, sx, sy);
  }, { numbers: () => table(["series", "iteration", "H(Z|X)", "I(X;Z)", "regime"], DATA.series.flatMap((s, i) =>
    means[i].map((p) => [s.name, String(p[0]), short(p[1]), short(p[2]), regimeName(p)]))) });
}

function regimeName([, x, y]) {
  const { borders, regimes } = DATA.plane;
  return borders ? regimes[(y < borders.y ? 1 : 0) + (x < borders.x ? 2 : 0)] : "";
}

function drawRegimes(root, box, x, y, regimes) {
  const corners = [[x, box.right, box.top, y], [x, box.right, y, box.bottom], [box.left, x, box.top, y], [box.left, x, y, box.bottom]];
  corners.forEach(([left, right, top, bottom], i) => {
    if (right <= left || bottom <= top) return;
    const isLeft = i > 1;
    root.append(svg("rect", { x: left, y: top, width: right - left, height: bottom - top, fill: REGIME_COLORS[i], opacity: 0.07 }),
      svg("text", { x: isLeft ? left + 6 : right - 6, y: i % 2 ? bottom - 8 : top + 16, "text-anchor": isLeft ? "start" : "end", class: "label", fill: REGIME_COLORS[i], opacity: 0.9 }, regimes[i]));
  });
  for (const [x1, x2, y1, y2] of [[x, x, box.top, box.bottom], [box.left, box.right, y, y]]) {
    root.append(svg("line", { x1, x2, y1, y2, stroke: "var(--muted)", "stroke-dasharray": "5 4" }));
  }
}

const path = (way, sx, sy, stroke, width, opacity) => svg("polyline", {
  points: way.map((p) => `${sx(p[1])},${sy(p[2])}`).join(" "), fill: "none", stroke, "stroke-width": width, opacity, "stroke-linejoin": "round",
});

function planeCursor(root, tip, width, stops, sx, sy) {
  const layer = svg("g", {});
  root.append(layer);
  let now = -1;
  const go = (k) => {
    now = (k + stops.length) % stops.length;
    const { p, i } = stops[now];
    layer.replaceChildren(svg("circle", { cx: sx(p[1]), cy: sy(p[2]), r: 8, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 }));
    show(tip, sx(p[1]), sy(p[2]), width, [el("b", {}, `iteration ${p[0]}`), tipRow(color(i), DATA.series[i].name, regimeName(p)),
      tipRow(null, "H(Z|X)", short(p[1])), tipRow(null, "I(X;Z)", short(p[2]))]);
  };
  const leave = () => { now = -1; layer.replaceChildren(); hide(tip); };
  root.onpointermove = (event) => {
    const at = root.getBoundingClientRect(), x = event.clientX - at.left, y = event.clientY - at.top;
    const far = stops.map(({ p }) => Math.hypot(sx(p[1]) - x, sy(p[2]) - y));
    const best = far.indexOf(Math.min(...far));
    if (far[best] < 40) go(best); else leave();
  };
  root.onpointerleave = root.onblur = leave;
  root.onkeydown = (event) => {
    if (event.key === "ArrowRight") go(now + 1);
    else if (event.key === "ArrowLeft") go(now < 0 ? stops.length - 1 : now - 1);
    else if (event.key === "Escape") leave(); else return;
    event.preventDefault();
  };
}

const BUCKET_COLORS = { task: "var(--s0)", entropy: "var(--s1)", kl: "var(--s3)" };

const norm = (point) => (point.length ? short(point[0]) : "–");

// Norms by bucket, the mean over the run, on a logarithmic axis: one figure a series.
function bucketFigure(series) {
  const { names, parts, means } = DATA.buckets, own = means[series];
  const labels = names.map((n) => n.replace("bucket_", ""));
  const title = "Gradient norms";
  const alt = `${DATA.series[series].name}: gradient norms by bucket of reward variance, mean over the run. ` + parts.map((part) =>
    `${part}: ${own[part].map(norm).join(", ")}`).join("; ");
  return figure(title, alt, (root, width, tip) => {
    const height = 236, box = { left: 46, right: width - 10, top: 40, bottom: height - 40 };
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("height", height);
    const values = DATA.buckets.means.flatMap((m) => parts.flatMap((p) => m ? m[p].flat() : [])).filter((v) => v > 0);
    if (!values.length) return;
    const low = Math.floor(Math.log10(Math.min(...values))), high = Math.ceil(Math.log10(Math.max(...values)) + 1e-9);
    const sy = (v) => box.bottom - ((Math.log10(v) - low) / (high - low || 1)) * (box.bottom - box.top);
    const sx = (k) => box.left + ((k + 0.5) / names.length) * (box.right - box.left);
    for (let e = low; e <= high; e++) {
      root.append(svg("line", { class: "rule", x1: box.left, x2: box.right, y1: sy(10 ** e), y2: sy(10 ** e) }),
        svg("text", { x: box.left - 7, y: sy(10 ** e) + 4, "text-anchor": "end" }, short(10 ** e)));
    }
    root.append(svg("text", { x: 0, y: 11 }, "L2 norm (log scale)"), svg("text", { x: box.right, y: box.bottom + 33, "text-anchor": "end" }, "bucket, by reward spread"));
    labels.forEach((label, k) => root.append(svg("text", { x: sx(k), y: box.bottom + 17, "text-anchor": "middle" }, label)));
    parts.forEach((part, j) => {
      const at = own[part].map((v, k) => [sx(k) + (j - (parts.length - 1) / 2) * 10, v]).filter(([, v]) => v[0] > 0);
      const paint = BUCKET_COLORS[part];
      root.append(svg("polyline", { points: at.map(([x, v]) => `${x},${sy(v[0])}`).join(" "), fill: "none", stroke: paint, "stroke-width": 1.4, opacity: 0.55 }));
      for (const [x, v] of at) {
        if (v[1] > 0) root.append(svg("line", { x1: x, x2: x, y1: sy(v[1]), y2: sy(v[2]), stroke: paint, "stroke-width": 3, opacity: 0.35 }));
        root.append(mark(MARKS[j], x, sy(v[0]), 4, { fill: paint }));
      }
      const left = box.left + j * 76;
      root.append(mark(MARKS[j], left + 5, 26, 4, { fill: paint }), svg("text", { x: left + 14, y: 30 }, part));
    });
    cursor(root, names.map((_, k) => sx(k)), (k) => show(tip, sx(k), box.top, width, [el("b", {}, `bucket ${labels[k]}`),
      ...parts.map((p) => tipRow(BUCKET_COLORS[p], p, norm(own[p][k])))]), () => hide(tip));
  }, { owner: series, numbers: () => table(["bucket", ...parts], labels.map((label, k) => [label, ...parts.map((p) => norm(own[p][k]))])) });
}

// A part of every bucket over the iterations, in shades from least to most spread.
function bucketCourse(series, part, title, unit) {
  const { names, prefix } = DATA.buckets;
  const shade = (k) => `color-mix(in srgb, var(--s0) ${names.length > 1 ? Math.round(25 + (75 * k) / (names.length - 1)) : 100}%, var(--line))`;
  const keys = el("div", { class: "legend" }, names.map((n, k) => el("span", { "--c": shade(k) }, el("span", { class: "swatch" }), n.replace("bucket_", ""))));
  const panel = { title, unit, kind: "number", lines: [] };
  return lineChart(panel, () => names.map((name, k) => {
    const curve = (DATA.curves[`${prefix}${name}/${part}`] || [])[series];
    const label = name.replace("_", " ");
    return curve && { ...curve, low: null, error: null, name: label, label, style: "main", mark: "circle", color: shade(k) };
  }).filter(Boolean), { owner: series, keys });
}

// One figure a series: a lane per indicator, in it a strip per run.
function alarmFigure(series) {
  const runs = DATA.series[series].runs.map((r) => ({ ...DATA.alarms[r], name: DATA.runs[r].name }));
  const names = [...new Set(runs.flatMap((r) => Object.keys(r.at)))];
  const alt = `${DATA.series[series].name}: alarms over iterations. ` + runs.map((r) => {
    const first = names.filter((n) => r.first[n] !== null && r.first[n] !== undefined).map((n) => `${n} first at ${r.first[n]}`);
    return `${r.name}: ${first.join(", ") || "no alarm"}; ${r.fell === null ? "success did not fall" : `success fell at ${r.fell}`}`;
  }).join(". ");
  return figure("Alarms over iterations", alt, (root, width, tip) => {
    const hasRegimes = runs.some((r) => r.regimes.length);
    const lane = Math.max(18, 7 * runs.length + 6), top = 26;
    const lanes = hasRegimes ? [...names, "regime"] : names;
    const bottom = top + lane * lanes.length, height = bottom + 40;
    const end = Math.max(...DATA.alarms.map((a) => a.last), 1);
    const box = { left: Math.min(140, width * 0.36), right: width - 14 };
    const sx = (i) => box.left + (i / end) * (box.right - box.left), tick = Math.max(2, (box.right - box.left) / end - 1);
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("height", height);
    lanes.forEach((name, k) => {
      const y = top + k * lane;
      if (k % 2 === 0) root.append(svg("rect", { x: 0, y, width, height: lane, fill: "var(--shade)" }));
      root.append(svg("text", { x: 4, y: y + lane / 2 + 4 }, name.replaceAll("_", " ")));
      runs.forEach((run, j) => strip(root, run, name, sx, y + 3 + ((lane - 6) / runs.length) * (j + 0.5), tick, series));
    });
    for (const t of ticks(0, end, (box.right - box.left) / 75)) {
      if (Number.isInteger(t)) root.append(svg("text", { x: sx(t), y: bottom + 16, "text-anchor": "middle" }, String(t)));
    }
    root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: bottom, y2: bottom }), svg("text", { x: box.right, y: bottom + 32, "text-anchor": "end" }, "iteration"));
    drawFalls(root, runs, sx, top, bottom);
    const stops = Array.from({ length: end + 1 }, (_, i) => i);
    cursor(root, stops.map(sx), (i) => show(tip, sx(i), top, width, alarmRows(runs, names, i, series)), () => hide(tip));
  }, { owner: series, keys: regimeKeys(runs), numbers: () => table(["run", ...names.map((n) => `first ${n}`), "success fell"],
    runs.map((r) => [r.name, ...names.map((n) => String(r.first[n] ?? "never")), r.fell === null ? "no" : String(r.fell)])) });
}

const regimeKeys = (runs) => runs.some((r) => r.regimes.length) ? el("div", { class: "legend" }, DATA.plane.regimes.map((name, i) =>
  el("span", { "--c": REGIME_COLORS[i] }, el("span", { class: "swatch" }), name))) : null;

function strip(root, run, name, sx, y, tick, series) {
  if (name === "regime") {
    for (const [at, regime] of run.regimes) root.append(svg("rect", { x: sx(at) - tick / 2, y: y - 3, width: tick, height: 6, fill: REGIME_COLORS[regime] }));
    return;
  }
  for (const at of run.at[name] || []) root.append(svg("rect", { x: sx(at) - tick / 2, y: y - 2.5, width: tick, height: 5, fill: color(series), opacity: 0.6 }));
  const first = run.first[name];
  if (first !== null && first !== undefined) root.append(mark("diamond", sx(first), y, 4.5, { fill: color(series), stroke: "var(--paper)" }));
}

function drawFalls(root, runs, sx, top, bottom) {
  const falls = runs.filter((r) => r.fell !== null);
  for (const run of falls) root.append(svg("line", { x1: sx(run.fell), x2: sx(run.fell), y1: top, y2: bottom, stroke: "var(--bad)", "stroke-width": 1.8, "stroke-dasharray": "5 3" }));
  root.append(svg("text", { class: "label", x: falls.length ? sx(Math.min(...falls.map((r) => r.fell))) : sx(0), y: top - 8, "text-anchor": falls.length ? "middle" : "start" },
    falls.length ? "success fell" : "success did not fall"));
}

function alarmRows(runs, names, at, series) {
  const rows = [el("b", {}, `iteration ${at}`)];
  for (const run of runs) {
    const on = names.filter((n) => (run.at[n] || []).includes(at)).map((n) => n.replaceAll("_", " "));
    const regime = run.regimes.find(([i]) => i === at);
    rows.push(tipRow(color(series), run.name, [on.join(", ") || "no alarm", regime && DATA.plane.regimes[regime[1]]].filter(Boolean).join("; ")));
  }
  return rows;
}
