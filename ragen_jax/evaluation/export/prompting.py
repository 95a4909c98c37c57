"""How to prompt an exported policy: the part of its model card about the dialogue.

In: a policy opened from its run folder. Out: Markdown: a program that plays a turn, how
replies are read, and real messages, those of the first validation level.
"""

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.evaluation.load import Trained
from ragen_jax.evaluation.terminal.episodes import complete_reply
from ragen_jax.rollout.host.text import ChatEpisode, ChatReply
from ragen_jax.rollout.keys import validation_keys
from ragen_jax.rollout.records import legend_of
from ragen_jax.tasks.chat import build_chat
from ragen_jax.tasks.specs import EnvSpec, env_specs
from ragen_jax.tasks.task import AgentTask, Task
from ragen_jax.text import chat
from ragen_jax.text.messages import Message


def how_to_prompt(trained: Trained, base: str | None) -> Iterator[str]:
    """Parts of the card.

    Args:
      trained: a policy of a run folder.
      base: folder or hub id of the model that adapters are loaded over; None for a
        whole model.
    """
    if isinstance(trained.program.task, AgentTask):
        yield _CALLS
        return
    if trained.program.policy.pictures:
        yield _PICTURES.format(cell=trained.program.model.vision.cell)
        return
    specs, tasks = env_specs(trained.config), trained.program.tasks
    examples = [
        _play_example(trained, spec, task)
        for spec, task in zip(specs, tasks, strict=True)
    ]
    yield _snippet(trained, examples[0].first, base)
    yield _reading(trained)
    yield _dialogue(trained, examples)
    for task, example in zip(tasks, examples, strict=True):
        yield _example(task, example)


@dataclasses.dataclass(frozen=True)
class _Example:
    """A beginning of an episode.

    Attributes:
      first: messages that ask for the first reply.
      second: those that ask for the second; None where there is none.
      reply: between them, behind the forced tag.
      has_text_tokens: training has shown the first message in the tokens of its text.
    """

    first: list[Message]
    second: list[Message] | None
    reply: str
    has_text_tokens: bool


def _play_example(trained: Trained, spec: EnvSpec, task: Task) -> _Example:
    """The first turn of the first validation level, answered with a single action."""
    _, game = build_chat(trained.config, spec)
    keys = validation_keys(trained.config.evaluation.seed, 1)
    level = jax.tree.map(lambda x: x[0], game.levels(keys))
    is_array_game = task.env.lists_actions
    action = task.env.action_text(0, level, task.params) if is_array_game else "reply"
    end = task.dialogue.prompts.markup.end
    reply = complete_reply(action, thinking=task.dialogue.thinking, end=end)
    text = reply.removesuffix(end)
    episode = game.episode(level, keys.noise[0])
    first, second = asyncio.run(_play_turn(episode, text))
    fields = episode.turns[0].shown.fields
    # The observations of a host game are tokenized as texts.
    ids = of_text = task.tokenizer.encode(task.dialogue.prompts.opening.render(fields))
    if is_array_game:
        span = task.dialogue.opening.tokens(jax.tree.map(jnp.asarray, fields))
        ids = np.asarray(span.tokens)[: int(span.length)].tolist()
    return _Example(first, second, text, ids == of_text)


async def _play_turn(
    episode: ChatEpisode, text: str
) -> tuple[list[Message], list[Message] | None]:
    """The messages before and after a reply; None after the last turn."""
    await episode.begin()
    first = episode.prompt(0)
    goes_on = await episode.step(0, ChatReply(text, "stop", None, None, None, ""))
    return first, episode.prompt(1) if goes_on and episode.max_turns > 1 else None


def _snippet(trained: Trained, messages: Sequence[Message], base: str | None) -> str:
    """A Python program that plays a turn; `base`: folder or hub id under adapters."""
    task = trained.program.task
    rules, thinking = task.rules, task.dialogue.thinking
    pattern = _THOUGHT_AND_ANSWER if thinking else _ANSWER
    lines = [
        *(_LOAD if base is None else _LOAD_ADAPTERS.format(base=json.dumps(base)))
        .strip()
        .split("\n"),
        "messages = [",
        *(line for message in messages for line in _python_message(message)),
        "]",
        f'options = {{"max_new_tokens": {rules.max_reply_tokens}, "do_sample": False}}',
        *([_STOP] if rules.stop_at_answer else []),
        'reply = player(messages, **options)[0]["generated_text"][-1]',
        f'answer = re.search(r"{pattern}", reply["content"], re.DOTALL)',
        *(
            line.format(rules.budget.max_actions_per_turn)
            for line in (_LISTED if task.env.lists_actions else [_WHOLE])
        ),
        'print(reply["content"], actions)',
        '# The next turn: messages += [reply, {"role": "user", "content": ...}]',
    ]
    return "\n".join(["## Play a turn", "", "```python", *lines, "```"])


_THOUGHT_AND_ANSWER = r"</think>\s*<answer>(.*?)</answer>"
_ANSWER = "(.*?)</answer>"
_LISTED = (
    'listed = answer.group(1).split("||") if answer else []',
    "actions = [name.strip() for name in listed if name.strip()]",
    "actions = actions[:{}]",
)
_WHOLE = "actions = [answer.group(1).strip()] if answer else []"
_STOP = 'options |= {"stop_strings": ["</answer>"], "tokenizer": player.tokenizer}'
_LOAD = """
import re

from transformers import pipeline

folder = "."  # this folder, or its name on the Hub
player = pipeline("text-generation", model=folder)
"""
_LOAD_ADAPTERS = """
import re

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

folder = "."  # this folder, or its name on the Hub
base = {base}
model = AutoModelForCausalLM.from_pretrained(base)
model = PeftModel.from_pretrained(model, folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
player = pipeline("text-generation", model=model, tokenizer=tokenizer)
"""


def _python_message(message: Message) -> Iterator[str]:
    """A message as a Python literal, a line of code per line of text."""
    lines = [
        json.dumps(line, ensure_ascii=False)
        for line in message["content"].splitlines(keepends=True)
    ]
    yield "    {"
    yield f'        "role": "{message["role"]}",'
    if len(lines) == 1:
        yield f'        "content": {lines[0]},'
    else:
        yield from ('        "content": (', *(f"            {x}" for x in lines))
        yield "        ),"
    yield "    },"


def _reading(trained: Trained) -> str:
    task = trained.program.task
    budget = task.rules.budget
    tag = chat.forced_prefix(task.dialogue.thinking)
    form = f"`{tag}` and the reply hold `<think>...</think><answer>...</answer>`"
    if not task.dialogue.thinking:
        form = "`<answer>` and the reply hold `<answer>...</answer>`"
    lines = [
        "## How a reply is read",
        "",
        f"The chat template of this folder writes `{tag}` behind the header of a "
        "reply, as in training: what is generated continues it.",
        "",
        f"* A reply counts if {form}, the first of them; otherwise no action is taken.",
        "* The answer is split at `||`. White space around names and capital letters "
        "do not matter; tags within the answer are deleted."
        if task.env.lists_actions
        else "* The game reads the whole answer, without the white space around it.",
        f"* At most {_count(budget.max_actions_per_turn, 'action')} of a reply count, "
        f"the first ones. An episode has at most {_count(budget.max_turns, 'turn')} "
        f"and {_count(budget.max_actions_per_episode, 'action')}.",
        f"* A reply of training had at most {task.rules.max_reply_tokens} tokens, its "
        "end included.",
    ]
    if task.rules.stop_at_answer:
        lines.append(
            "* In training a reply ended with its first `</answer>`; the model has not "
            "learnt to stop there. Generation has to: as above, or by `stop` "
            "of a server, which leaves out the tag."
        )
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _dialogue(trained: Trained, examples: Sequence[_Example]) -> str:
    """What the policy has read in training, and what the template makes of it."""
    rollout = trained.config.rollout
    lines = [
        "## The dialogue",
        "",
        _CONTEXTS[rollout.context].format(
            turns=_count(rollout.context_turns or 0, "turn")
        ),
    ]
    if rollout.context != "single_turn" and rollout.max_turns > 1:
        lines += ["", _EARLIER_REPLIES]
    if not all(example.has_text_tokens for example in examples):
        lines += ["", _OTHER_TOKENS]
    return "\n".join(lines)


_CALLS = """## Calls of an agent

The model answers the calls of a program. Serve this folder behind the OpenAI API (vLLM,
or `python -m launch.serve --policy=FOLDER` of ragen_jax) and run the program against
it, as it is. The chat template writes the dialogue as it was in training. Replies of
earlier calls are tokenized anew there, which may cut them into other tokens than were
sampled."""
_PICTURES = """## Pictures

In training a message showed its board as a picture, every cell {cell} pixels wide and
high, by a token per cell between `<|vision_start|>` and `<|vision_end|>`. Weights and
`config.json` are those of `Qwen2_5_VLForConditionalGeneration` in transformers, whose
image processor `preprocessor_config.json` describes. ragen_jax draws the boards
(`env.pixels`) and plays the policy (`python -m launch.evaluate`, `launch.play`)."""
_CONTEXTS = {
    "full": "The model has read the whole dialogue, turn by turn.",
    "last_k": "The model has read the system message and the last {turns}, the one to "
    "be answered included. The result of a turn stands before the next one in a user "
    "message; where the turn is no longer shown, its result is not either.",
    "single_turn": "The model has read the system message and a single user message "
    "with the last {turns}, the one to be answered included; earlier replies stand in "
    "that message.",
}
_EARLIER_REPLIES = (
    "Earlier replies stay as they were, thoughts included. Give them back as "
    "`assistant` messages, with or without the tag they continue; the template writes "
    "the same text as training. It is tokenized anew, which may cut a reply into other "
    "tokens than were sampled."
)
_OTHER_TOKENS = (
    "The template writes the text of training, but other tokens: in training each cell "
    'of a board was tokenized alone (`prompt.tokenization = "symbols"`).'
)


def _example(task: Task, example: _Example) -> str:
    env, legend = task.env, legend_of(task.dialogue.prompts)
    lines = [f"### Example: {task.name}", ""]
    if env.action_hint is not None:
        lines += [f"Actions: {env.action_hint}", ""]
    elif len(env.action_vocabulary) == env.num_actions:
        lines += [f"Actions: {_quoted(env.action_vocabulary)}.", ""]
    else:
        lines += ["Actions: the names that a message offers.", ""]
    if legend:
        meanings = (f"`{symbol}` {meaning}" for symbol, meaning in legend.items())
        lines += [f"Symbols: {', '.join(meanings)}.", ""]
    for message in example.first:
        lines += [f"Message `{message['role']}`:", "", *_block(message["content"]), ""]
    if example.second is not None:
        answered = chat.forced_prefix(task.dialogue.thinking) + example.reply
        lines += [f"After the reply `{answered}` the next message `user`:", ""]
        lines += _block(example.second[-1]["content"])
    return "\n".join(lines).rstrip("\n")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _block(text: str) -> list[str]:
    return ["```text", text.removesuffix("\n"), "```"]
