// The episode viewer: filters, a list, one episode turn by turn.
"use strict";

const MAX_LISTED = 300;
const VIEW = { shown: [], episode: -1, turn: 0, action: 0, context: true };

function viewer() {
  const { chosen, total } = DATA.episodes;
  if (!chosen.length)
    return [
      el(
        "p.note",
        "No episodes: the runs have no trajectories/, --max_episodes is 0, or no record can be shown.",
      ),
      skippedNote(),
    ];
  const run = new Set(chosen.map((e) => e.run)),
    games = new Set(chosen.map((e) => e.environment).filter(Boolean));
  const steps = [...new Set(chosen.map((e) => e.iteration))].sort((a, b) => a - b);
  const field = (label, control) => el("label", label, control);
  const select = (id, all, options) =>
    el(
      "select",
      { id, onchange: applyFilters },
      el("option", { value: "" }, all),
      options.map(([value, text]) => el("option", { value: String(value) }, text)),
    );
  const input = (id, type, more) => el("input", { id, type, oninput: applyFilters, ...more });
  const form = el(
    "form",
    { onsubmit: (e) => e.preventDefault(), onreset: () => setTimeout(applyFilters) },
    el(
      "fieldset.filters",
      el("legend", "Episodes to show"),
      field(
        "Run",
        select(
          "f-run",
          "all runs",
          [...run].map((r) => [r, DATA.runs[r].name]),
        ),
      ),
      games.size > 1
        ? field(
            "Game",
            select(
              "f-game",
              "all games",
              [...games].map((g) => [g, g]),
            ),
          )
        : null,
      field(
        "Iteration",
        select(
          "f-iteration",
          "all iterations",
          steps.map((s) => [s, String(s)]),
        ),
      ),
      field(
        "Outcome",
        select("f-outcome", "any outcome", [
          ["success", "success"],
          ["failure", "failure"],
        ]),
      ),
      chosen.some((e) => e.kept !== undefined)
        ? field(
            "Filter",
            select("f-kept", "kept or dropped", [
              ["true", "kept"],
              ["false", "dropped"],
            ]),
          )
        : null,
      chosen.some((e) => e.group !== undefined)
        ? field("Group", input("f-group", "number", { step: 1, min: 0 }))
        : null,
      field("Return from", input("f-low", "number", { step: "any" })),
      field("Return to", input("f-high", "number", { step: "any" })),
      field(
        "Text in a reply or state",
        input("f-text", "text", { placeholder: "search", autocomplete: "off" }),
      ),
      el("label.check", input("f-format", "checkbox"), "invalid format only"),
      el("button", { type: "reset" }, "Reset"),
    ),
  );
  const left = total - chosen.length - skippedCount();
  return [
    form,
    el("p.muted", { id: "count", role: "status" }),
    left > 0
      ? el(
          "p.muted",
          { id: "left-out" },
          `${left} of ${total} recorded episodes are left out to keep this file small, evenly over iterations (`,
          el("code", "--max_episodes"),
          ").",
        )
      : null,
    skippedNote(),
    el(
      "div.viewer",
      { onkeydown: viewerKeys },
      el("ul.list", { id: "list", "aria-label": "Episodes" }),
      el("article.episode", {
        id: "episode",
        tabindex: "0",
        "aria-label": "Episode. Left and right arrow: turns. Up and down arrow: episodes.",
      }),
    ),
  ];
}

const skippedCount = () =>
  Object.values(DATA.episodes.skipped).reduce((sum, count) => sum + count, 0);

// Malformed records are left out when the file is made.
function skippedNote() {
  const reasons = Object.entries(DATA.episodes.skipped);
  if (!reasons.length) return null;
  const list = reasons.map(([reason, count]) => `${reason} (${count})`).join("; ");
  return el(
    "p.note",
    { id: "skipped" },
    `${plural(skippedCount(), "malformed episode record")} left out: ${list}.`,
  );
}

const valueOf = (id) => {
  const node = document.getElementById(id);
  return node ? node.value : "";
};

function applyFilters() {
  const low = valueOf("f-low"),
    high = valueOf("f-high"),
    text = valueOf("f-text").toLowerCase();
  const invalid = document.getElementById("f-format").checked,
    outcome = valueOf("f-outcome");
  const same = (id, value) => valueOf(id) === "" || valueOf(id) === String(value);
  VIEW.shown = DATA.episodes.chosen.filter(
    (e) =>
      same("f-run", e.run) &&
      same("f-game", e.environment) &&
      same("f-iteration", e.iteration) &&
      same("f-kept", e.kept) &&
      same("f-group", e.group) &&
      (outcome === "" || e.success === (outcome === "success")) &&
      (low === "" || e.return >= Number(low) - 1e-6) &&
      (high === "" || e.return <= Number(high) + 1e-6) &&
      (!invalid || e.turns.some((t) => t.has_format === false)) &&
      (text === "" ||
        e.turns.some((t) => `${t.observation}\n${t.reply}`.toLowerCase().includes(text))),
  );
  const wins = VIEW.shown.filter((e) => e.success).length;
  document.getElementById("count").textContent =
    `${VIEW.shown.length} of ${DATA.episodes.chosen.length} episodes, ${wins} of them successes` +
    (VIEW.shown.length > MAX_LISTED ? `; the list shows the first ${MAX_LISTED}` : "");
  listEpisodes();
  openEpisode(VIEW.shown.length ? 0 : -1);
}

function listEpisodes() {
  document
    .getElementById("list")
    .replaceChildren(
      ...VIEW.shown
        .slice(0, MAX_LISTED)
        .map((e, k) =>
          el(
            "li",
            el(
              "button",
              { type: "button", onclick: () => openEpisode(k) },
              outcomeMark(e),
              el(
                "span.entry",
                seriesSample(DATA.runs[e.run].series),
                `iteration ${e.iteration}, row ${e.row}`,
              ),
              el("span", short(e.return)),
              el(
                "span.sub",
                [
                  DATA.runs[e.run].name,
                  e.environment,
                  groupOf(e),
                  plural(e.turns.length, "turn"),
                  keptOf(e),
                  e.turns.some((t) => t.has_format === false) ? "invalid format" : null,
                ]
                  .filter(Boolean)
                  .join(" · "),
              ),
            ),
          ),
        ),
    );
}

// Records of evaluations, and of earlier versions, say neither.
const groupOf = (e) => (e.group === undefined ? null : `group ${e.group}`);
const keptOf = (e) => (e.kept === undefined ? null : e.kept ? "kept" : "dropped");
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const outcomeMark = (e) =>
  el(
    "span",
    {
      class: e.success ? "good" : "bad",
      role: "img",
      "aria-label": e.success ? "success" : "failure",
    },
    e.success ? "✓" : "✗",
  );

function openEpisode(k) {
  [VIEW.episode, VIEW.turn] = [k, 0];
  const list = document.getElementById("list");
  [...list.querySelectorAll("button")].forEach((b, i) => {
    if (i !== k) {
      b.removeAttribute("aria-current");
      return;
    }
    b.setAttribute("aria-current", "true");
    const top = b.offsetTop - list.offsetTop; // scroll the list, not the page
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + b.offsetHeight > list.scrollTop + list.clientHeight)
      list.scrollTop = top + b.offsetHeight - list.clientHeight;
  });
  showTurn(0);
}

function viewerKeys(event) {
  const tag = event.target.tagName;
  if (tag === "INPUT" || tag === "SELECT" || event.altKey || event.ctrlKey || event.metaKey) return;
  const last = Math.min(VIEW.shown.length, MAX_LISTED) - 1;
  if (event.key === "ArrowRight") showTurn(VIEW.turn + 1);
  else if (event.key === "ArrowLeft") showTurn(VIEW.turn - 1);
  else if (event.key === "ArrowDown") openEpisode(Math.min(VIEW.episode + 1, last));
  else if (event.key === "ArrowUp") openEpisode(Math.max(VIEW.episode - 1, Math.min(0, last)));
  else return;
  event.preventDefault();
}

// `action`: the board that is shown, 0 before the turn, k after its k-th action.
function showTurn(wanted, action = 0) {
  const box = document.getElementById("episode"),
    e = VIEW.shown[VIEW.episode];
  if (!e) {
    box.replaceChildren(el("p.muted", "No episode passes the filters."));
    return;
  }
  VIEW.turn = Math.max(0, Math.min(wanted, e.turns.length - 1));
  VIEW.action = action;
  const focused =
    document.activeElement && box.contains(document.activeElement) ? document.activeElement.id : "";
  const turn = e.turns[VIEW.turn],
    isLast = VIEW.turn === e.turns.length - 1;
  const go = (id, text, to, off) =>
    el("button", { type: "button", id, disabled: off, onclick: () => showTurn(to) }, text);
  box.replaceChildren(
    el(
      "div.row",
      el(
        "span",
        { class: `badge ${e.success ? "good" : "bad"}` },
        e.success ? "success" : e.truncated ? "failure: out of budget" : "failure",
      ),
      keptOf(e) && el("span.badge", `${keptOf(e)} by the filter`),
      el("b", `return ${short(e.return)}`),
      el(
        "span.muted.entry",
        seriesSample(DATA.runs[e.run].series),
        [
          DATA.runs[e.run].name,
          e.environment,
          `iteration ${e.iteration}`,
          `row ${e.row}`,
          groupOf(e),
          `${e.sampled_tokens} of ${plural(e.tokens, "token")} sampled`,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    ),
    el(
      "div.stepper",
      { role: "group", "aria-label": "Turns" },
      go("t-back", "◀ Back", VIEW.turn - 1, VIEW.turn === 0),
      el(
        "ol",
        e.turns.map((t, k) =>
          el(
            "li",
            el(
              "button",
              {
                type: "button",
                id: `t-${k}`,
                class: e.kept === false ? null : gainOrLoss(t.advantage),
                "aria-label": `Turn ${k + 1}`,
                "aria-current": k === VIEW.turn ? "step" : null,
                onclick: () => showTurn(k),
              },
              String(k + 1),
            ),
          ),
        ),
      ),
      go("t-next", "Next ▶", VIEW.turn + 1, isLast),
      el(
        "span.muted",
        { id: "t-now", role: "status" },
        `turn ${VIEW.turn + 1} of ${e.turns.length}`,
      ),
    ),
    el("div.turn", el("div", boardBlock(e), facts(turn)), el("div", replyBlocks(turn, e))),
    isLast
      ? el(
          "p.muted",
          e.success ? "This turn reached the goal." : "The episode ended here without the goal.",
        )
      : "",
  );
  if (focused) (document.getElementById(focused) || box).focus({ preventScroll: true });
  if (focused && document.activeElement === document.body) box.focus({ preventScroll: true });
}
