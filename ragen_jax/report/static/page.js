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
  document.getElementById("nav").append(
    el(
      "ul",
      [...main.querySelectorAll("section > h2")].map((h) =>
        el("li", el("a", { href: `#${h.parentNode.id}` }, h.textContent)),
      ),
    ),
    lookControls(),
  );
  document
    .getElementById("foot")
    .append(
      "Bands show the range over the seeds of a series; for a series of one seed, the 95 % interval of held-out success. Made by launch.report; this file needs no network.",
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
  const runs = DATA.runs.length,
    several = DATA.series.length > 1;
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
          `${plural(DATA.series.length, "series").replace(/seriess$/, "series")}, ${plural(runs, "run")}`,
        ),
      ),
      el("div.row", scheme),
    ),
    el(
      "div.legend",
      { role: "group", "aria-label": "Series shown" },
      several
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

function card(row) {
  const i = DATA.series.findIndex((s) => s.name === row.series);
  const alarms = DATA.series[i].runs
    .flatMap((r) => Object.entries(DATA.alarms[r].first))
    .filter(([, at]) => at !== null)
    .sort((a, b) => a[1] - b[1]);
  const name = DATA.games.length > 1 ? `${row.series}: ${row.game}` : row.series;
  if (!row.last)
    return el("div.card", { "--c": color(i) }, el("h3", name), el("p.sub", "no success recorded"));
  const gain = 100 * (row.last[0] - row.first[0]);
  return el(
    "div.card",
    { "--c": color(i) },
    el("h3", name),
    el("div.big", percent(row.last[0])),
    el(
      "div.sub",
      `${row.source} success after ${row.iterations} iterations, ${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points`,
    ),
    el(
      "div.sub",
      row.ceiling === null
        ? ""
        : `${row.is_exact ? "best possible" : "reference play"} ${percent(row.ceiling)}`,
    ),
    alarms.length
      ? el("div.sub", `first alarm: ${alarms[0][0].replaceAll("_", " ")} at ${alarms[0][1]}`)
      : null,
  );
}

function summaryTable() {
  const show = (p) =>
    p
      ? [
          percent(p[0]),
          " ",
          p[1] === p[2]
            ? ""
            : el("span.interval", `${(100 * p[1]).toFixed(1)}–${(100 * p[2]).toFixed(1)}`),
        ]
      : "–";
  const rows = DATA.summary.map((r) => [
    seriesKey(DATA.series.findIndex((s) => s.name === r.series)),
    r.game,
    String(r.num_runs),
    String(r.iterations),
    show(r.first),
    show(r.last),
    r.best ? [...show(r.best), el("span.interval", ` at ${r.best_at}`)] : "–",
    r.ceiling === null ? "–" : `${percent(r.ceiling)}${r.is_exact ? "" : " (ref.)"}`,
    r.ceiling === null || !r.last ? "–" : `${(100 * (r.ceiling - r.last[0])).toFixed(1)} points`,
  ]);
  const sources = [...new Set(DATA.summary.map((r) => r.source))].join(" or ");
  return [
    el(
      "div.scroll.tall",
      { tabindex: "0", role: "region", "aria-label": "Summary table" },
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
    el(
      "p.muted",
      `Success is ${sources}. Small numbers: the 95 % interval of a single run, or the range over several seeds.`,
    ),
  ];
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
  const note = part.absent ? el("p.note", `Not drawn: ${part.absent}.`) : null;
  const layouts = { alarms: "grid wide", plane: "grid plane" };
  const grid = layouts[part.special] || (part.key === "progress" ? "grid progress" : "grid");
  return [note, drawn.length ? el("div", { class: grid }, drawn) : null];
}

function explorer() {
  const names = Object.keys(DATA.curves).sort(),
    place = el("div.grid.wide");
  const draw = (name) =>
    place.replaceChildren(
      lineChart({
        title: name,
        unit: "value",
        kind: "number",
        lines: [{ metric: name, label: name, style: "main" }],
      }),
    );
  const pick = el(
    "select",
    { id: "metric", onchange: (e) => draw(e.target.value) },
    names.map((n) => el("option", { value: n }, n)),
  );
  draw(names[0]);
  return [el("label.pick", "Metric", pick), place];
}

function settings() {
  const { common, differing } = DATA.settings,
    keys = Object.keys(differing);
  const text = (v) =>
    v === null || v === undefined ? "none" : typeof v === "string" ? v : JSON.stringify(v);
  const shared = Object.entries(common).filter(([k, v]) => !(k in differing) && v !== null);
  return [
    keys.length
      ? el(
          "div.scroll.tall",
          { tabindex: "0", role: "region", "aria-label": "Settings that differ" },
          table(
            ["setting", ...DATA.series.map((s) => s.name)],
            keys.map((k) => [k, ...differing[k].map(text)]),
          ),
        )
      : DATA.runs.length > 1
        ? el("p", "The runs differ in their seed only.")
        : null,
    el(
      "p.muted",
      `Common: ${shared.map(([k, v]) => `${k} = ${text(v)}`).join(", ") || "none of the main settings"}.`,
    ),
    el(
      "div.scroll.tall",
      { tabindex: "0", role: "region", "aria-label": "Runs" },
      table(
        ["run", "series", "seed", "iterations"],
        DATA.runs.map((r) => [r.name, seriesKey(r.series), text(r.seed), String(r.iterations)]),
      ),
    ),
  ];
}

start();
