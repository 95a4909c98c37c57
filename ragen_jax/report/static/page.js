// Puts the page together: head, tables, sections in order.
"use strict";

function start() {
  setScheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setScheme);
  document.getElementById("top").append(...head());
  const main = document.getElementById("main");
  main.append(section("summary", "Summary", null, summaryTable()));
  for (const part of DATA.sections)
    main.append(section(part.key, part.title, part.lead, sectionBody(part)));
  main.append(section("explore", "Any metric", "Every recorded metric, by name.", explorer()));
  main.append(
    section(
      "episodes",
      "Episodes",
      "Sample episodes of training, turn by turn: prompt, thought, answer, and every sampled token with its log-probability. The left and right arrow keys change the turn, up and down the episode.",
      viewer(),
    ),
  );
  main.append(section("settings", "Settings", null, settings()));
  const links = el(
    "ul",
    [...main.querySelectorAll("section > h2")].map((h) =>
      el("li", el("a", { href: `#${h.parentNode.id}` }, h.textContent)),
    ),
  );
  document.getElementById("nav").append(el("div.frame", links), lookControls());
  watchEdges(links);
  document
    .getElementById("foot")
    .append(
      [
        DATA.series.some((s) => s.runs.length > 1) &&
          "The band of several runs shows their range, or their standard error.",
        DATA.series.some((s) => s.runs.length === 1) &&
          "The band of a single run's held-out success is its 95 % interval.",
        "Made by launch.report; this file needs no network.",
      ]
        .filter(Boolean)
        .join(" "),
    );
  if (DATA.episodes.chosen.length) applyFilters();
}

const section = (id, title, lead, body) =>
  el(
    "section",
    { id, "aria-labelledby": `h-${id}` },
    el("h2", { id: `h-${id}` }, title),
    lead && el("p.lead", lead),
    body,
  );

function setScheme() {
  const forced = document.documentElement.dataset.theme;
  const isDark = forced ? forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.classList.toggle("dark", isDark);
  const button = document.getElementById("scheme");
  if (button) button.textContent = isDark ? "Light" : "Dark";
}

function head() {
  const runs = plural(DATA.runs.length, "run");
  const short = DATA.runs.filter((r) => r.planned > r.iterations);
  const scheme = el(
    "button",
    {
      id: "scheme",
      type: "button",
      "aria-label": "Switch between light and dark",
      onclick: () => {
        document.documentElement.dataset.theme = document.documentElement.classList.contains("dark")
          ? "light"
          : "dark";
        setScheme();
      },
    },
    document.documentElement.classList.contains("dark") ? "Light" : "Dark",
  );
  return [
    el(
      "div.titlebar",
      el(
        "div",
        el("h1", DATA.games.join(", ") || "Runs"),
        el(
          "p.muted",
          [
            ONE ? runs : `${DATA.series.length} series, ${runs}`,
            DATA.runs.length === 1
              ? iterationsOf(DATA.runs[0])
              : short.length
                ? `${short.length} with fewer iterations than planned`
                : null,
          ]
            .filter(Boolean)
            .join(", "),
        ),
      ),
      el("div.row", scheme),
    ),
    el(
      "div.legend",
      { role: "group", "aria-label": "Series shown" },
      !ONE
        ? DATA.series.map((s, i) =>
            el(
              "label",
              { "--c": color(i) },
              el("input", {
                type: "checkbox",
                checked: true,
                "--c": color(i),
                onchange: (e) => {
                  if (e.target.checked) HIDDEN.delete(i);
                  else HIDDEN.add(i);
                  redraw();
                },
              }),
              seriesKey(i),
            ),
          )
        : null,
    ),
    el("div.cards", DATA.summary.map(card)),
  ];
}

// A run may be under way, or may have ended early.
const iterationsOf = ({ iterations, planned }) =>
  planned > iterations
    ? `${iterations} of ${planned} iterations`
    : plural(iterations, "iteration");
const measuredAt = (at) => (at ? `after iteration ${at}` : "before training");
const someRuns = (row, point) =>
  point.runs < row.num_runs ? ` (${point.runs} of ${row.num_runs} runs)` : "";

function card(row) {
  const i = row.series;
  const alarms = DATA.series[i].runs
    .flatMap((r) => Object.entries(DATA.alarms[r].first))
    .filter(([, at]) => at !== null)
    .sort((a, b) => a[1] - b[1]);
  const series = DATA.series[i].name;
  const name = DATA.games.length > 1 ? `${series}: ${row.game}` : series;
  if (!row.last)
    return el("div.card", { "--c": color(i) }, el("h3", name), el("p.sub", "no success recorded"));
  const gain = 100 * (row.last.mean - row.first.mean);
  const points = `${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points`;
  return el(
    "div.card",
    { "--c": color(i) },
    el("h3", name),
    el("div.big", percent(row.last.mean)),
    el(
      "div.sub",
      `${row.source} success ${measuredAt(row.last.at)}${someRuns(row, row.last)}`,
    ),
    row.last.at > row.first.at
      ? el(
          "div.sub",
          `${points} since ${row.first.at ? `iteration ${row.first.at}` : "the start"}`,
        )
      : null,
    row.ceiling === null
      ? null
      : el(
          "div.sub",
          `${row.is_exact ? "best possible" : "reference play"} ${percent(row.ceiling)}`,
        ),
    alarms.length
      ? el("div.sub", `first alarm: ${alarms[0][0].replaceAll("_", " ")} at ${alarms[0][1]}`)
      : null,
  );
}

function summaryTable() {
  const isRange = (p) => p && p.ends[0] !== p.ends[1];
  const show = (row, p) =>
    p
      ? [
          percent(p.mean),
          el(
            "span.interval",
            `${isRange(p) ? `${p.ends.map((x) => (100 * x).toFixed(1)).join("–")} ` : ""}at ${p.at}${someRuns(row, p)}`,
          ),
        ]
      : "–";
  const rows = DATA.summary.map((r) => [
    seriesKey(r.series),
    r.game,
    String(r.num_runs),
    runsOf(r.series),
    show(r, r.first),
    show(r, r.last),
    show(r, r.best),
    r.ceiling === null ? "–" : `${percent(r.ceiling)}${r.is_exact ? "" : " (ref.)"}`,
    r.ceiling === null || !r.last ? "–" : `${(100 * (r.ceiling - r.last.mean)).toFixed(1)} points`,
  ]);
  const measured = DATA.summary.filter((r) => r.last);
  const sources = [...new Set(measured.map((r) => r.source))].join(" or ");
  const ends = [
    measured.some((r) => r.num_runs === 1 && isRange(r.last)) && "the 95 % interval of a single run",
    measured.some((r) => r.num_runs > 1) && "the smallest and the largest of several runs",
  ].filter(Boolean);
  return [
    scrollBox(
      "Summary table",
      true,
      table(
        [
          "series",
          "game",
          "runs",
          "iterations",
          "success: first",
          "last",
          "best",
          DATA.summary.every((r) => r.is_exact) ? "best possible" : "solver",
          "regret (last)",
        ],
        rows,
      ),
    ),
    sources
      ? el(
          "p.muted",
          `Success is ${sources}. Below it: ${[ends.join(", "), "the iteration"].filter(Boolean).join(" and ")}.`,
        )
      : null,
  ];
}

// Iterations of the runs of a series, and what they were to be.
function runsOf(series) {
  const runs = DATA.series[series].runs.map((r) => DATA.runs[r]);
  const last = runs.reduce((a, b) => (b.iterations > a.iterations ? b : a));
  const fewest = Math.min(...runs.map((r) => r.iterations));
  const planned = last.planned > last.iterations ? ` of ${last.planned}` : "";
  return `${fewest < last.iterations ? `${fewest} to ` : ""}${last.iterations}${planned}`;
}

function sectionBody(part) {
  const drawn = [],
    each = DATA.series.map((_, i) => i);
  if (part.special === "plane") drawn.push(planeFigure());
  if (part.special === "alarms")
    drawn.push(
      ...each
        .filter((i) => DATA.series[i].runs.some((r) => Object.keys(DATA.alarms[r].at).length))
        .map(alarmFigure),
    );
  if (part.special === "buckets") {
    for (const i of each.filter((k) => DATA.buckets.means[k])) {
      if (DATA.buckets.parts.length) drawn.push(bucketFigure(i));
      if (DATA.buckets.parts.includes("task"))
        drawn.push(bucketCourse(i, "task", "Task gradient by bucket", "L2 norm"));
      if (DATA.buckets.has_snr)
        drawn.push(bucketCourse(i, "snr", "Signal to noise by bucket", "signal / noise"));
    }
  }
  drawn.push(...part.panels.map((p) => lineChart(p)));
  const notes = [
    part.absent && `Not drawn: ${part.absent}.`,
    part.special === "plane" &&
      !DATA.plane.borders &&
      "No regimes are named: the first information, or entropy, that was measured is not above 0.",
  ];
  const layouts = { alarms: "grid wide", plane: "grid plane" };
  const grid = layouts[part.special] || (part.key === "progress" ? "grid progress" : "grid");
  return [
    notes.filter(Boolean).map((text) => el("p.note", text)),
    drawn.length ? el("div", { class: grid }, drawn) : null,
  ];
}

function explorer() {
  const names = Object.keys(DATA.curves).sort(),
    series = DATA.series.map((_, i) => i),
    meaning = el("p.muted", { id: "meaning" }),
    place = el("div.grid.wide");
  const draw = (name) => {
    const { kind, text } = DATA.declared[name];
    meaning.textContent = text;
    const unit = { share: "share", seconds: "seconds" }[kind] || "value";
    const lines = [{ metric: name, label: name, style: "main", series }];
    place.replaceChildren(lineChart({ title: name, unit, kind, lines }));
  };
  if (!names.length) return el("p.note", "No metric was recorded.");
  const pick = el(
    "select",
    { id: "metric", onchange: (e) => draw(e.target.value) },
    names.map((n) => el("option", { value: n }, n)),
  );
  draw(names[0]);
  return [el("label.pick", "Metric", pick), meaning, place];
}

function settings() {
  const { common, differing, repeated_seeds: repeated } = DATA.settings,
    keys = Object.keys(differing);
  const text = (v) =>
    v === null || v === undefined ? "none" : typeof v === "string" ? v : JSON.stringify(v);
  const shared = Object.entries(common).filter(([k, v]) => !(k in differing) && v !== null);
  const named = shared.map(([k, v]) => `${k} = ${text(v)}`).join(", ");
  return [
    keys.length
      ? scrollBox(
          "Settings that differ",
          true,
          table(
            ["setting", ...DATA.series.map((s) => s.name)],
            keys.map((k) => [k, ...differing[k].map(text)]),
          ),
        )
      : DATA.runs.length > 1 && !repeated.length
        ? el("p", "The runs differ in their seed only.")
        : null,
    repeated.map((sentence) => el("p.note", `Note: ${sentence}.`)),
    named ? el("p.muted", `${DATA.runs.length > 1 ? "Common: " : ""}${named}.`) : null,
    scrollBox(
      "Runs",
      true,
      table(
        ["run", "series", "seed", "iterations"],
        DATA.runs.map((r) => [
          r.name,
          seriesKey(r.series),
          text(r.seed),
          r.planned > r.iterations ? `${r.iterations} of ${r.planned}` : String(r.iterations),
        ]),
      ),
    ),
  ];
}

start();
