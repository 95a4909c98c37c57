// A board as a drawing: the picture of each cell is the one that models see.
"use strict";

// Boards of a turn: before it, then after each of its actions.
const boardsOf = (turn) => [turn.board, ...(turn.boards_after || [])];

function boardBlock(e) {
  const turn = e.turns[VIEW.turn],
    boards = boardsOf(turn),
    now = Math.min(VIEW.action, boards.length - 1);
  const past = VIEW.turn ? boardsOf(e.turns[VIEW.turn - 1]) : [];
  // Of runs that recorded no board after an action: the board a turn ago.
  const before = now ? boards[now - 1] : past.length > 1 ? past[past.length - 2] : past[0];
  if (!turn.board)
    return el(
      "div",
      el("section.block", el("h4", "State"), el("div.prose", lastMessage(turn.observation))),
    );
  const rows = boards[now].map((row) => Array.from(row)),
    legend = e.legend || {},
    old = before && before.map((row) => Array.from(row));
  const used = [...new Set(rows.flat())];
  const words = rows.map((row) => row.map((s) => legend[s] || s).join(", ")).join("; ");
  const board = svg("svg", {
    class: "board",
    id: "board",
    role: "img",
    "aria-label": `Board ${now ? `after action ${now} of` : "before"} turn ${VIEW.turn + 1}: ${words}`,
    viewBox: `0 0 ${rows[0].length} ${rows.length}`,
  });
  rows.forEach((row, r) =>
    row.forEach((symbol, c) => {
      const cell = drawCell(legend[symbol], symbol, c, r);
      if (old && old[r] && old[r][c] !== symbol)
        cell.append(
          rectangle(c + 0.03, r + 0.03, 0.94, 0.94, {
            fill: "none",
            stroke: "#d9480f",
            "stroke-width": 0.05,
            "stroke-dasharray": "0.12 0.08",
          }),
        );
      board.append(cell);
    }),
  );
  return el(
    "div",
    board,
    boards.length > 1 ? actionStepper(turn, now) : null,
    el(
      "ul.boardkey",
      used.map((s) =>
        el(
          "li",
          svg("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, drawCell(legend[s], s, 0, 0)),
          `${s} ${legend[s] || ""}`,
        ),
      ),
      old
        ? el("li", `dashed: changed since the last ${now || past.length > 1 ? "action" : "turn"}`)
        : null,
    ),
  );
}

// A button per board of the turn.
function actionStepper(turn, now) {
  return el(
    "div.stepper",
    { role: "group", "aria-label": "Actions of the turn" },
    el(
      "ol",
      boardsOf(turn).map((_, k) =>
        el(
          "li",
          el(
            "button",
            {
              type: "button",
              id: `a-${k}`,
              "aria-label": k ? `After action ${k}` : "Before the turn",
              "aria-current": k === now ? "step" : null,
              onclick: () => showTurn(VIEW.turn, k),
            },
            k ? String(k) : "start",
          ),
        ),
      ),
    ),
    el("span.muted", now ? `after action ${now} of ${turn.actions.length}` : "before the turn"),
  );
}

// Before and after the user's messages: ChatML, Llama 3.
const MARKUPS = [
  ["<|im_start|>user\n", "<|im_end|>"],
  ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"],
];

// Text of the prompt's last message, without chat markup.
function lastMessage(text) {
  const found = MARKUPS.find(([open]) => text.includes(open));
  return found ? text.split(found[0]).at(-1).split(found[1])[0] : text;
}

function drawCell(meaning, symbol, c, r) {
  const drawing = (CELLS[meaning || ""] || {})[symbol];
  if (drawing)
    return svg(
      "g",
      {},
      svg("title", {}, meaning || symbol),
      svg("image", { href: drawing, x: c, y: r, width: 1, height: 1 }),
    );
  const size = Math.min(0.55, 1.4 / Array.from(symbol).length);
  return svg(
    "g",
    {},
    svg("title", {}, meaning || symbol),
    rectangle(c, r, 1, 1, { fill: "#ece7db", stroke: "rgba(0,0,0,.10)", "stroke-width": 0.02 }),
    caption(c + 0.5, r + 0.5 + 0.36 * size, symbol, {
      "text-anchor": "middle",
      style: null,
      "font-size": size.toFixed(3),
      class: "glyph",
      fill: "#3a3a3a",
    }),
  );
}
