// The episode viewer: filters, a list, one episode turn by turn.
"use strict";

const MAX_LISTED = 300;
const VIEW = { shown: [], episode: -1, turn: 0, context: true };

function viewer() {
  const { chosen, total } = DATA.episodes;
  if (!chosen.length) return [el("p", { class: "note" }, "No episodes: these runs have no trajectories/, or --max_episodes left none.")];
  const run = new Set(chosen.map((e) => e.run)), games = new Set(chosen.map((e) => e.environment).filter(Boolean));
  const steps = [...new Set(chosen.map((e) => e.iteration))].sort((a, b) => a - b);
  const field = (label, control) => el("label", {}, label, control);
  const select = (id, all, options) => el("select", { id, onchange: applyFilters }, el("option", { value: "" }, all),
    options.map(([value, text]) => el("option", { value: String(value) }, text)));
  const input = (id, type, more) => el("input", { id, type, oninput: applyFilters, ...more });
  const form = el("form", { onsubmit: (e) => e.preventDefault(), onreset: () => setTimeout(applyFilters) },
    el("fieldset", { class: "filters" }, el("legend", {}, "Episodes to show"),
      field("Run", select("f-run", "all runs", [...run].map((r) => [r, DATA.runs[r].name]))),
      games.size > 1 ? field("Game", select("f-game", "all games", [...games].map((g) => [g, g]))) : null,
      field("Iteration", select("f-iteration", "all iterations", steps.map((s) => [s, String(s)]))),
      field("Outcome", select("f-outcome", "any outcome", [["success", "success"], ["failure", "failure"]])),
      field("Return from", input("f-low", "number", { step: "any" })),
      field("Return to", input("f-high", "number", { step: "any" })),
      field("Text in a reply or state", input("f-text", "text", { placeholder: "search", autocomplete: "off" })),
      el("label", { class: "check" }, input("f-format", "checkbox"), "invalid format only"),
      el("button", { type: "reset" }, "Reset")));
  const left = total - chosen.length;
  return [
    form,
    el("p", { class: "muted", id: "count", role: "status" }),
    left > 0 ? el("p", { class: "muted", id: "left-out" }, `${left} of ${total} recorded episodes are left out of this file to keep it small, evenly over iterations (--max_episodes).`) : null,
    el("div", { class: "viewer", onkeydown: viewerKeys },
      el("ul", { class: "list", id: "list", "aria-label": "Episodes" }),
      el("article", { class: "episode", id: "episode", tabindex: "0", "aria-label": "Episode. Left and right arrow: turns. Up and down arrow: episodes." })),
  ];
}

const valueOf = (id) => { const node = document.getElementById(id); return node ? node.value : ""; };

function applyFilters() {
  const low = valueOf("f-low"), high = valueOf("f-high"), text = valueOf("f-text").toLowerCase();
  const invalid = document.getElementById("f-format").checked, outcome = valueOf("f-outcome");
  const same = (id, value) => valueOf(id) === "" || valueOf(id) === String(value);
  VIEW.shown = DATA.episodes.chosen.filter((e) =>
    same("f-run", e.run) && same("f-game", e.environment) && same("f-iteration", e.iteration) &&
    (outcome === "" || e.success === (outcome === "success")) &&
    (low === "" || e.return >= Number(low) - 1e-6) && (high === "" || e.return <= Number(high) + 1e-6) &&
    (!invalid || e.turns.some((t) => t.has_format === false)) &&
    (text === "" || e.turns.some((t) => `${t.observation}\n${t.reply}`.toLowerCase().includes(text))));
  const wins = VIEW.shown.filter((e) => e.success).length;
  document.getElementById("count").textContent =
    `${VIEW.shown.length} of ${DATA.episodes.chosen.length} episodes, ${wins} of them successes` +
    (VIEW.shown.length > MAX_LISTED ? `; the list shows the first ${MAX_LISTED}` : "");
  listEpisodes();
  openEpisode(VIEW.shown.length ? 0 : -1);
}

function listEpisodes() {
  document.getElementById("list").replaceChildren(...VIEW.shown.slice(0, MAX_LISTED).map((e, k) => el("li", {},
    el("button", { type: "button", onclick: () => openEpisode(k) }, outcomeMark(e),
      el("span", {}, `iteration ${e.iteration}, row ${e.row}`), el("span", {}, short(e.return)),
      el("span", { class: "sub" }, [DATA.runs[e.run].name, e.environment, plural(e.turns.length, "turn"),
        e.turns.some((t) => t.has_format === false) ? "invalid format" : null].filter(Boolean).join(" · "))))));
}

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const outcomeMark = (e) => el("span", { class: e.success ? "good" : "bad", role: "img", "aria-label": e.success ? "success" : "failure" }, e.success ? "✓" : "✗");

function openEpisode(k) {
  [VIEW.episode, VIEW.turn] = [k, 0];
  const list = document.getElementById("list");
  [...list.querySelectorAll("button")].forEach((b, i) => {
    if (i !== k) { b.removeAttribute("aria-current"); return; }
    b.setAttribute("aria-current", "true");
    const top = b.offsetTop - list.offsetTop; // scroll the list, not the page
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + b.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + b.offsetHeight - list.clientHeight;
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

function showTurn(wanted) {
  const box = document.getElementById("episode"), e = VIEW.shown[VIEW.episode];
  if (!e) { box.replaceChildren(el("p", { class: "muted" }, "No episode passes the filters.")); return; }
  VIEW.turn = Math.max(0, Math.min(wanted, e.turns.length - 1));
  const held = document.activeElement && box.contains(document.activeElement) ? document.activeElement.id : "";
  const turn = e.turns[VIEW.turn], isLast = VIEW.turn === e.turns.length - 1;
  const go = (id, text, to, off) => el("button", { type: "button", id, disabled: off, onclick: () => showTurn(to) }, text);
  box.replaceChildren(
    el("div", { class: "row" },
      el("span", { class: `badge ${e.success ? "good" : "bad"}` }, e.success ? "success" : e.truncated ? "failure: out of budget" : "failure"),
      el("b", {}, `return ${short(e.return)}`),
      el("span", { class: "muted" }, [DATA.runs[e.run].name, e.environment, `iteration ${e.iteration}`, `row ${e.row}`, `${e.sampled_tokens} of ${plural(e.tokens, "token")} sampled`].filter(Boolean).join(" · "))),
    el("div", { class: "stepper", role: "group", "aria-label": "Turns" },
      go("t-back", "◀ Back", VIEW.turn - 1, VIEW.turn === 0),
      el("ol", {}, e.turns.map((_, k) => el("li", {}, el("button", { type: "button", id: `t-${k}`, "aria-label": `Turn ${k + 1}`, "aria-current": k === VIEW.turn ? "step" : null, onclick: () => showTurn(k) }, String(k + 1))))),
      go("t-next", "Next ▶", VIEW.turn + 1, isLast),
      el("span", { class: "muted", id: "t-now", role: "status" }, `turn ${VIEW.turn + 1} of ${e.turns.length}`)),
    el("div", { class: "turn" }, el("div", {}, boardBlock(e), facts(turn)), el("div", {}, replyBlocks(turn))),
    isLast ? el("p", { class: "muted" }, e.success ? "This turn reached the goal." : "The episode ended here without the goal.") : "");
  if (held) (document.getElementById(held) || box).focus({ preventScroll: true });
  if (held && document.activeElement === document.body) box.focus({ preventScroll: true });
}

function facts(t) {
  const rows = [["reward", short(t.reward)], ["penalty", short(t.penalty)], ["bonus", short(t.bonus ?? 0)],
    ["actions listed / valid / run", `${t.listed} / ${t.valid} / ${t.actions.length}`], ["effective actions", String(t.effective)],
    ["actions left before", String(t.actions_left)], ["format", t.has_format ? "valid" : "invalid"],
    ["reply", `${plural(t.reply_tokens, "token")}${t.is_cut ? ", cut" : ""}`], ["log-probability", `${t.log_prob.toFixed(2)} nats`]];
  return el("table", { class: "facts" }, el("tbody", {}, rows.map(([k, v]) => el("tr", {}, el("td", {}, k), el("td", {}, v)))));
}

function replyBlocks(t) {
  const { thought, answer } = readReply(t);
  const block = (title, ...content) => el("section", { class: "block" }, el("h4", {}, title), ...content);
  const actions = answer === null ? [] : answer.split("||").map((a) => a.trim()).filter(Boolean);
  return [
    thought === null ? null : block("Thought", el("div", { class: "said", id: "thought" }, thought || "(empty)")),
    block("Answer", answer === null ? el("p", { class: "bad", id: "answer" }, "no answer in its tags") :
      el("div", { class: "chips", id: "answer" }, actions.length ? actions.map((a) => el("span", { class: "chip" }, a)) : "(empty)")),
    tokenBlock(t, block),
    t.window === undefined ? null : el("details", {}, el("summary", {}, "What the model saw (its window)"), el("div", { class: "said" }, t.window)),
  ];
}

// Where a person looks first; the tokens below show the reply as it is.
function readReply(t) {
  const forced = t.observation.endsWith("<answer>") ? "<answer>" : t.observation.endsWith("<think>") ? "<think>" : "";
  const text = forced + t.reply;
  const thought = /<think>([\s\S]*?)(<\/think>|<answer>|$)/.exec(text), answer = /<answer>([\s\S]*?)<\/answer>/.exec(text);
  return { thought: thought ? thought[1] : null, answer: answer ? answer[1] : null };
}

function tokenBlock(t, block) {
  const toggle = el("label", { class: "row" }, el("input", { type: "checkbox", id: "f-context", checked: VIEW.context, onchange: (event) => { VIEW.context = event.target.checked; showTurn(VIEW.turn); } }), "show the prompt");
  const context = VIEW.context ? el("span", { class: "context" }, t.observation) : null;
  if (!t.token_texts) {
    return block("Tokens", el("p", { class: "note" }, "This run recorded no single tokens (it was made by an older version)."), el("div", { class: "legend" }, toggle), el("div", { class: "said" }, context, t.reply));
  }
  const tokens = t.token_texts.map((text, i) => {
    const logProb = t.token_log_probs[i];
    const note = `log-probability ${logProb.toFixed(3)}, probability ${percent(Math.exp(logProb))}, in the loss`;
    return el("span", { class: "token", title: text === "" ? `part of the next character; ${note}` : note, "--p": String(Math.round(Math.min(1, -logProb / 4) * 70)) },
      text === "" ? "◌" : text.replaceAll("\n", "↵\n"));
  });
  return block("Tokens",
    el("div", { class: "legend" },
      el("span", {}, el("span", { class: "token", "--p": "0" }, "sampled: in the loss"), "p = 1", el("span", { class: "ramp", "aria-hidden": "true" }), "p < 0.02"),
      el("span", { class: "context" }, "prompt: not in the loss"), toggle),
    el("div", { class: "said tokens", id: "tokens" }, context, tokens));
}

function boardBlock(e) {
  const turn = e.turns[VIEW.turn], before = VIEW.turn ? e.turns[VIEW.turn - 1].board : null;
  if (!turn.board) return el("div", {}, el("section", { class: "block" }, el("h4", {}, "State"), el("div", { class: "said" }, lastMessage(turn.observation))));
  const rows = turn.board.map((row) => Array.from(row)), legend = e.legend || {}, old = before && before.map((row) => Array.from(row));
  const used = [...new Set(rows.flat())];
  const words = rows.map((row) => row.map((s) => legend[s] || s).join(", ")).join("; ");
  const board = svg("svg", { class: "board", id: "board", role: "img", "aria-label": `Board before turn ${VIEW.turn + 1}: ${words}`, viewBox: `0 0 ${rows[0].length} ${rows.length}` });
  rows.forEach((row, r) => row.forEach((symbol, c) => {
    const cell = drawCell(legend[symbol], symbol, c, r);
    if (old && old[r] && old[r][c] !== symbol) cell.append(svg("rect", { x: c + 0.03, y: r + 0.03, width: 0.94, height: 0.94, fill: "none", stroke: "#d9480f", "stroke-width": 0.05, "stroke-dasharray": "0.12 0.08" }));
    board.append(cell);
  }));
  return el("div", {}, board, el("ul", { class: "boardkey" }, used.map((s) => el("li", {},
    svg("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, drawCell(legend[s], s, 0, 0)), `${s} ${legend[s] || ""}`)),
    old ? el("li", {}, "dashed: changed since the last turn") : null));
}

// What the last message of the prompt says, without its chat markup.
function lastMessage(text) {
  const start = text.lastIndexOf("<|im_start|>user\n");
  return (start < 0 ? text : text.slice(start + 17)).split("<|im_end|>")[0];
}

function drawCell(meaning, symbol, c, r) {
  const look = CELLS[meaning] || CELLS[""], x = c + 0.5, y = r + 0.5, ink = look.ink, parts = [];
  const disc = (fill, size) => svg("circle", { cx: x, cy: y, r: size, fill });
  const ring = (stroke) => svg("circle", { cx: x, cy: y, r: 0.33, fill: "none", stroke, "stroke-width": 0.09 });
  const line = (x1, y1, x2, y2) => svg("line", { x1: c + x1, y1: r + y1, x2: c + x2, y2: r + y2, stroke: ink, "stroke-width": 0.045 });
  if (look.shape === "bricks") parts.push(line(0, 0.33, 1, 0.33), line(0, 0.67, 1, 0.67), line(0.5, 0, 0.5, 0.33), line(0.2, 0.33, 0.2, 0.67), line(0.75, 0.33, 0.75, 0.67), line(0.5, 0.67, 0.5, 1));
  else if (look.shape === "ring") parts.push(ring(ink), disc(ink, 0.1));
  else if (look.shape === "box") parts.push(svg("rect", { x: c + 0.16, y: r + 0.16, width: 0.68, height: 0.68, rx: 0.07, fill: ink }),
    svg("path", { d: `M${c + 0.28} ${r + 0.28}L${c + 0.72} ${r + 0.72}M${c + 0.72} ${r + 0.28}L${c + 0.28} ${r + 0.72}`, stroke: "#fff", "stroke-width": 0.07, opacity: 0.75 }));
  else if (look.shape === "hole") parts.push(disc(ink, 0.36));
  else if (look.shape === "star") parts.push(svg("polygon", { points: star(x, y, 0.38), fill: ink }));
  else if (look.shape === "disc") parts.push(...person(x, y, ink, disc));
  else if (look.shape === "disc in ring") parts.push(ring(look.second), ...person(x, y, ink, disc, 0.22));
  else if (look.shape === "disc in hole") parts.push(disc(look.second, 0.38), ...person(x, y, ink, disc, 0.22));
  else if (look.shape === "text") parts.push(svg("text", { x, y: y + 0.2, "text-anchor": "middle", style: null, "font-size": "0.55", class: "glyph", fill: ink }, symbol));
  const ground = svg("rect", { x: c, y: r, width: 1, height: 1, fill: look.ground, stroke: look.shape === "bricks" ? "none" : "rgba(0,0,0,.10)", "stroke-width": 0.02 });
  return svg("g", {}, svg("title", {}, meaning || symbol), ground, parts);
}

const person = (x, y, ink, disc, size = 0.3) => [disc(ink, size), svg("circle", { cx: x - size * 0.35, cy: y - size * 0.15, r: size * 0.16, fill: "#fff" }), svg("circle", { cx: x + size * 0.35, cy: y - size * 0.15, r: size * 0.16, fill: "#fff" })];
const star = (x, y, size) => Array.from({ length: 10 }, (_, i) => {
  const radius = i % 2 ? size * 0.42 : size, angle = (Math.PI * i) / 5 - Math.PI / 2;
  return `${x + radius * Math.cos(angle)},${y + radius * Math.sin(angle)}`;
}).join(" ");
