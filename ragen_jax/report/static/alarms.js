// Alarms and regimes on a time line.
"use strict";

// Whether a run's success fell: short runs, and those at chance, cannot tell.
const fallOf = (run) =>
  run.fell !== null
    ? `success fell at ${run.fell}`
    : run.is_judged
      ? "success did not fall"
      : "too few iterations or successes to judge whether success fell";

// The same of a series, none of whose runs fell.
function fallOfAll(runs) {
  const count = runs.filter((r) => r.is_judged).length;
  return count === 0 || count === runs.length
    ? fallOf(runs[0])
    : `success did not fall (${count} of ${runs.length} runs judged)`;
}

// One figure a series: a lane per indicator, in it a strip per run.
function alarmFigure(series) {
  const runs = DATA.series[series].runs.map((r) => ({
    ...DATA.alarms[r],
    name: DATA.runs[r].name,
  }));
  const names = [...new Set(runs.flatMap((r) => Object.keys(r.at)))];
  const alt =
    `${DATA.series[series].name}: alarms over iterations. ` +
    runs
      .map((r) => {
        const first = names
          .filter((n) => r.first[n] !== null && r.first[n] !== undefined)
          .map((n) => `${n} first at ${r.first[n]}`);
        return `${r.name}: ${first.join(", ") || "no alarm"}; ${fallOf(r)}`;
      })
      .join(". ");
  return figure(
    "Alarms over iterations",
    alt,
    (root, width, tip) => {
      const hasRegimes = runs.some((r) => r.regimes.length);
      const lane = Math.max(18, 7 * runs.length + 6),
        top = 26;
      const lanes = hasRegimes ? [...names, "regime"] : names;
      const bottom = top + lane * lanes.length,
        height = bottom + 40;
      const end = Math.max(...DATA.alarms.map((a) => a.last), 1);
      const box = { left: Math.min(140, width * 0.36), right: width - 14, bottom };
      const sx = xAxis(root, box, [0, end]);
      const tick = Math.max(2, (box.right - box.left) / end - 1);
      resize(root, width, height);
      lanes.forEach((name, k) => {
        const y = top + k * lane;
        if (k % 2 === 0) root.append(rectangle(0, y, width, lane, { fill: "var(--shade)" }));
        root.append(caption(4, y + lane / 2 + 4, name.replaceAll("_", " ")));
        runs.forEach((run, j) =>
          strip(root, run, name, sx, y + 3 + ((lane - 6) / runs.length) * (j + 0.5), tick, series),
        );
      });
      drawFalls(root, runs, sx, top, bottom);
      const stops = alarmStops(runs, end);
      cursor(
        root,
        stops.map(sx),
        (k) => show(tip, sx(stops[k]), top, width, alarmRows(runs, names, stops[k], series)),
        () => hide(tip),
      );
    },
    {
      keys: () => alarmKeys(series, runs),
      numbers: () =>
        table(
          ["run", ...names.map((n) => `first ${n}`), "success fell"],
          runs.map((r) => [
            r.name,
            ...names.map((n) => String(r.first[n] ?? "never")),
            r.fell !== null ? String(r.fell) : r.is_judged ? "no" : "not judged",
          ]),
        ),
    },
  );
}

// Iterations the cursor stops at: all of them, or of very long runs where something changed.
function alarmStops(runs, end) {
  if (end <= 5000) return Array.from({ length: end + 1 }, (_, i) => i);
  const marked = runs.flatMap((r) => [...Object.values(r.at).flat(), ...r.regimes.map(([i]) => i)]);
  return [...new Set([0, ...marked, end])].sort((a, b) => a - b);
}

const alarmKeys = (series, runs) => [
  ...seriesKeys([series]),
  markKey("square", "alarm", { fill: color(series), opacity: 0.6 }),
  markKey("diamond", "a run's first alarm", { fill: color(series) }),
  ...(runs.some((r) => r.fell !== null)
    ? [key(lineSample("main", "5 3", "var(--bad)"), "success fell")]
    : []),
  ...(runs.some((r) => r.regimes.length)
    ? DATA.plane.regimes.map((name, i) => colorKey(REGIME_COLORS[i], name))
    : []),
];

function strip(root, run, name, sx, y, tick, series) {
  if (name === "regime") {
    for (const [at, regime] of run.regimes)
      root.append(rectangle(sx(at) - tick / 2, y - 3, tick, 6, { fill: REGIME_COLORS[regime] }));
    return;
  }
  for (const at of run.at[name] || [])
    root.append(
      rectangle(sx(at) - tick / 2, y - 2.5, tick, 5, { fill: color(series), opacity: 0.6 }),
    );
  const first = run.first[name];
  if (first !== null && first !== undefined)
    root.append(
      mark("diamond", sx(first), y, 4.5, { fill: color(series), stroke: "var(--paper)" }),
    );
}

function drawFalls(root, runs, sx, top, bottom) {
  const falls = runs.filter((r) => r.fell !== null);
  for (const run of falls)
    root.append(
      segment(sx(run.fell), top, sx(run.fell), bottom, {
        stroke: "var(--bad)",
        "stroke-width": 1.8,
        "stroke-dasharray": "5 3",
      }),
    );
  root.append(
    caption(
      falls.length ? sx(Math.min(...falls.map((r) => r.fell))) : sx(0),
      top - 8,
      falls.length ? "success fell" : fallOfAll(runs),
      { class: "label", "text-anchor": falls.length ? "middle" : "start" },
    ),
  );
}

function alarmRows(runs, names, at, series) {
  const rows = [el("b", `iteration ${at}`)];
  for (const run of runs) {
    const on = names
      .filter((n) => (run.at[n] || []).includes(at))
      .map((n) => n.replaceAll("_", " "));
    const regime = run.regimes.find(([i]) => i === at);
    rows.push(
      tipRow(
        color(series),
        run.name,
        [on.join(", ") || "no alarm", regime && DATA.plane.regimes[regime[1]]]
          .filter(Boolean)
          .join("; "),
      ),
    );
  }
  return rows;
}
