// One turn of an episode: facts, thought, answer and tokens.
"use strict";

function facts(t) {
  const rows = [
    ...(t.advantage === undefined ? [] : [["advantage", signed(t.advantage)]]),
    ["reward", short(t.reward)],
    ["penalty", short(t.penalty)],
    ["bonus", short(t.bonus ?? 0)],
    ["actions listed / valid / run", `${t.listed} / ${t.valid} / ${t.actions.length}`],
    ["effective actions", String(t.effective)],
    ["actions left before", String(t.actions_left)],
    ["format", t.has_format ? "valid" : "invalid"],
    ...(t.segment === undefined ? [] : [["dialogue", String(t.segment)]]),
    ["reply", `${plural(t.reply_tokens, "token")}${t.is_cut ? ", cut" : ""}`],
    ["log-probability", `${t.log_prob.toFixed(2)} nats`],
  ];
  return el(
    "table.facts",
    el(
      "tbody",
      rows.map(([k, v]) => el("tr", el("td", k), el("td", v))),
    ),
  );
}

// Of an advantage: the update makes the turn more likely, or less.
const gainOrLoss = (value) => (value > 0 ? "gain" : value < 0 ? "loss" : null);
const signed = (value) =>
  el("b", { class: gainOrLoss(value) }, `${value > 0 ? "+" : ""}${short(value)}`);

function replyBlocks(t, e) {
  const block = (title, ...content) => el("section.block", el("h4", title), ...content);
  if (t.segment !== undefined) {
    return [block("Reply", foldedCalls(t.reply)), tokenBlock(t, e, block)];
  }
  const { thought, answer } = readReply(t);
  const actions =
    answer === null
      ? []
      : // Of a host game an answer is one action, whatever it holds.
        (t.listed > 1 ? answer.split("||") : [answer]).map((a) => a.trim()).filter(Boolean);
  return [
    thought === null
      ? null
      : block("Thought", el("div.prose", { id: "thought" }, thought || "(empty)")),
    block(
      "Answer",
      answer === null
        ? el("p.bad", { id: "answer" }, "no answer in its tags")
        : el(
            "div.chips",
            { id: "answer" },
            actions.length ? actions.map((a) => el("span.chip", a)) : "(empty)",
          ),
    ),
    tokenBlock(t, e, block),
    t.window === undefined
      ? null
      : el(
          "details",
          el("summary", "Prompt that the model read (context window)"),
          el("div.prose", t.window),
        ),
  ];
}

// An agent's reply: calls of tools are folded, the name of the tool stays.
function foldedCalls(reply) {
  const pieces = reply.split(/(<tool_call>[\s\S]*?<\/tool_call>)/);
  return el(
    "div.prose",
    { id: "reply" },
    pieces.map((piece) => {
      if (!piece.startsWith("<tool_call>")) return piece;
      const name = /"name"\s*:\s*"([^"]*)"/.exec(piece);
      const title = `call of ${name ? name[1] : "a tool"}`;
      return el("details.call", el("summary", title), el("div.prose", piece));
    }),
  );
}

// Thought and answer of a reply, for reading; the tokens below show the reply unchanged.
function readReply(t) {
  const forced = t.observation.endsWith("<answer>")
    ? "<answer>"
    : t.observation.endsWith("<think>")
      ? "<think>"
      : "";
  const text = forced + t.reply;
  const thought = /<think>([\s\S]*?)(<\/think>|<answer>|$)/.exec(text),
    answer = /<answer>([\s\S]*?)<\/answer>/.exec(text);
  return { thought: thought ? thought[1] : null, answer: answer ? answer[1] : null };
}

function tokenBlock(t, e, block) {
  const fate = e.kept === false ? "dropped, not in the loss" : "in the loss";
  const toggle = el(
    "label.row",
    el("input", {
      type: "checkbox",
      id: "f-context",
      checked: VIEW.context,
      onchange: (event) => {
        VIEW.context = event.target.checked;
        showTurn(VIEW.turn, VIEW.action);
      },
    }),
    "show the prompt",
  );
  const context = VIEW.context ? el("span.context", t.observation) : null;
  if (!t.token_texts) {
    return block(
      "Tokens",
      el("p.note", "This run recorded no single tokens: an earlier version made it."),
      el("div.legend", toggle),
      el("div.prose", context, t.reply),
    );
  }
  const tokens = t.token_texts.map((text, i) => {
    const logProb = t.token_log_probs[i];
    const note = `log-probability ${logProb.toFixed(3)}, probability ${percent(Math.exp(logProb))}, ${fate}`;
    return el(
      "span.token",
      {
        title: text === "" ? `part of the next character; ${note}` : note,
        "--p": String(Math.round(Math.min(1, -logProb / 4) * 70)),
      },
      text === "" ? "◌" : text.replaceAll("\n", "↵\n"),
    );
  });
  return block(
    "Tokens",
    el(
      "div.legend",
      el(
        "span",
        el("span.token", { "--p": "0" }, `sampled: ${fate}`),
        "p = 1",
        el("span.ramp", { "aria-hidden": "true" }),
        "p < 0.02",
      ),
      el("span.context", "prompt: not in the loss"),
      toggle,
    ),
    el("div.prose.tokens", { id: "tokens" }, context, tokens),
  );
}
