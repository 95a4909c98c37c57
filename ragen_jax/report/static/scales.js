// How line charts are looked at: smoothing and logarithmic axes, set for all at once.
"use strict";

// `smoothing`: weight of the past in a moving average, 0 (none) to 0.95.
const LOOK = { smoothing: 0, log: false, band: "range" }; // band: or "error"
const REDRAW = []; // every figure, for when these or the series shown change
const redraw = () => REDRAW.forEach((draw) => draw());

// Exponential moving average over the recorded points, without a bias to 0 at the start.
function average(values) {
  let sum = 0,
    weight = 0;
  return values.map((value) => {
    sum = LOOK.smoothing * sum + (1 - LOOK.smoothing) * value;
    weight = LOOK.smoothing * weight + (1 - LOOK.smoothing);
    return sum / weight;
  });
}

// A curve as it is drawn; `recorded` keeps the numbers themselves.
function smoothed(curve) {
  if (!LOOK.smoothing || curve.style === "reference") return curve;
  const drawn = { ...curve, recorded: curve.mean };
  for (const part of ["mean", "low", "high", "error"])
    if (curve[part]) drawn[part] = average(curve[part]);
  return drawn;
}

// The vertical axis: its ends, whether it is logarithmic, and its label.
function verticalAxis(values, kind, unit) {
  if (!LOOK.log) return { ends: domain(values, kind), isLog: false, unit };
  if (Math.min(...values) <= 0)
    return { ends: domain(values, kind), isLog: false, unit: `${unit}, linear: not all above 0` };
  const [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const room = high - low > 1e-9 ? (high - low) * 0.06 : 0.2;
  return {
    ends: [10 ** (low - room), 10 ** (high + room)],
    isLog: true,
    unit: `${unit}, log axis`,
  };
}

function domain(values, kind) {
  let low = Math.min(...values),
    high = Math.max(...values);
  if (kind === "share") {
    // Of a difference of shares it may lie below 0.
    const bottom = Math.min(0, low * 1.1);
    return high > 0.45 ? [bottom, 1] : [bottom, Math.max(high * 1.1, 0.01)];
  }
  // Means of equal numbers differ by their rounding.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)))
    [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (low >= 0 && low < 0.6 * high) low = 0;
  const room = (high - low) * 0.06;
  return [low === 0 ? 0 : low - room, high + room];
}

// About `count` round numbers that span low to high.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) {
    values.push(Number((i * step).toPrecision(12)));
  }
  return values;
}

// The same for a logarithmic axis: powers of ten, with 2 and 5 times them where few fit.
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) return ticks(low, high, 4);
  const every = Math.ceil(decades / 5);
  const values = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
    if (e % every) continue;
    for (const m of decades < 2 ? [1, 2, 5] : [1]) values.push(Number(`${m}e${e}`));
  }
  return values.filter((v) => v >= low && v <= high);
}

// Ticks are round numbers: all of their digits, and no more.
function tickText(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential().replace("e+", "e");
  return String(value);
}

// Controls of all charts, in the bar that stays in sight.
function lookControls() {
  const set = (name, value) => {
    LOOK[name] = value;
    redraw();
  };
  const shown = el("output", { for: "smoothing", id: "smoothing-now" }, "0");
  const band = el(
    "select",
    { id: "band", "aria-label": "What bands show", onchange: (e) => set("band", e.target.value) },
    el("option", { value: "range" }, "band: range of the runs"),
    el("option", { value: "error" }, "band: standard error"),
  );
  return el(
    "div.look",
    { role: "group", "aria-label": "All charts over iterations" },
    el(
      "label",
      { title: "Weight of the past in a moving average; recorded values stay as a faint line" },
      "Smoothing",
      el("input", {
        ...{ id: "smoothing", type: "range", min: 0, max: 0.95, step: 0.05, value: 0 },
        oninput: (e) => {
          shown.textContent = e.target.value;
          set("smoothing", Number(e.target.value));
        },
      }),
      shown,
    ),
    el(
      "label",
      { title: "Logarithmic vertical axes, where all values are above 0" },
      el("input", { id: "log", type: "checkbox", onchange: (e) => set("log", e.target.checked) }),
      "Log axes",
    ),
    DATA.series.some((s) => s.runs.length > 1) ? band : null,
  );
}
