"""Model card of an exported policy: what it is, how well it plays, how to prompt it.

In: a policy opened from its run folder. Out: the text of `README.md`, Markdown under
the YAML header that the Hugging Face Hub reads. Numbers are those that the run has
recorded, messages those of the first validation level; what is not recorded is left
out.
"""

import dataclasses
import json
import pathlib
import shlex
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from huggingface_hub import ModelCardData
from ml_collections import ConfigDict

from ragen_jax.config import changed_keys
from ragen_jax.evaluation.api import build_chat
from ragen_jax.evaluation.load import Trained, read_run_config
from ragen_jax.evaluation.play import complete_reply
from ragen_jax.evaluation.results import interval
from ragen_jax.rollout.collect import validation_keys
from ragen_jax.rollout.host import ChatReply
from ragen_jax.runs import reader
from ragen_jax.tasks import EnvSpec, Task, env_specs
from ragen_jax.text import chat
from ragen_jax.text.messages import Message

# Section of the recorded facts that says nothing to who prompts the model.
_MACHINES = "machines"


def model_card(
    trained: Trained, defaults: ConfigDict, *, base: str, has_adapters_only: bool
) -> str:
    """The text of the card.

    Args:
      trained: a policy of a run folder.
      defaults: values of all keys; the card lists the settings that differ.
      base: folder or hub id of the model that the run began with.
      has_adapters_only: the weights are adapters over `base`, not a whole model.
    """
    examples = [
        _play_example(trained, spec, task)
        for spec, task in zip(
            env_specs(trained.config), trained.program.tasks, strict=True
        )
    ]
    parts = [
        _header(trained, base, has_adapters_only),
        _introduction(trained, base, has_adapters_only),
        _success(trained),
        _snippet(trained, examples[0].first, base if has_adapters_only else None),
        _reading(trained),
        _dialogue(trained, examples),
        *(
            _example(task, example)
            for task, example in zip(trained.program.tasks, examples, strict=True)
        ),
        _settings(trained, defaults),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(trained: Trained, base: str, has_adapters_only: bool) -> str:
    names = [task.name.lower() for task in trained.program.tasks]
    data = ModelCardData(
        library_name="peft" if has_adapters_only else "transformers",
        pipeline_tag="text-generation",
        base_model=base if _is_hub_id(base) else None,
        tags=["ragen_jax", "reinforcement-learning", *names],
    )
    return f"---\n{data.to_yaml()}\n---"


def _is_hub_id(base: str) -> bool:
    return not pathlib.Path(base).is_dir()


def _introduction(trained: Trained, base: str, has_adapters_only: bool) -> str:
    names = " and ".join(task.name for task in trained.program.tasks)
    kind = (
        "LoRA adapters of a language model" if has_adapters_only else "Language model"
    )
    origin = f"`{base}`"
    if trained.config.model.path == "pocket":
        origin = "the pocket model of `ragen_jax`"
    elif not _is_hub_id(base):
        origin = f"`{pathlib.Path(base).name}`, a folder"
    rows = [
        ("run", f"`{trained.workdir.resolve().name}`"),
        ("iteration", f"{trained.iteration}"),
        ("started from", origin),
        *_recorded(trained.workdir),
    ]
    return "\n".join(
        [
            f"# {trained.workdir.resolve().name}: {names}",
            "",
            f"{kind}, trained with `ragen_jax` by reinforcement learning on whole "
            f"episodes of {names} in text.",
            "",
            *_table(("", ""), rows),
        ]
    )


def _recorded(workdir: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Texts and command lines that a run has recorded of itself."""
    for name, value in reader.read_recorded(workdir).items():
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            value = shlex.join(value)
        if name != _MACHINES and isinstance(value, str) and value:
            yield name.replace("_", " "), f"`{value}`"


def _success(trained: Trained) -> str:
    """Success on validation levels at this iteration; empty if it was not measured."""
    records = reader.read_metrics(trained.workdir)
    metrics = next((r for r in records if r["iteration"] == trained.iteration), {})
    rows = []
    for task in trained.program.tasks:
        prefix = f"val-env/{task.name}/"
        values = {
            name.removeprefix(prefix): value
            for name, value in metrics.items()
            if name.startswith(prefix) and value is not None
        }
        if values.keys() >= _MEASURED:
            rows.append(_score(task.name, values))
    if not rows:
        return ""
    names = "game", "success", "best possible", "levels", "episodes", "temperature"
    return "\n".join(
        [
            "## Success",
            "",
            "On validation levels, measured by the run at this iteration; in brackets "
            "the 95 % interval over levels. Best possible: what exact best play "
            "expects on the same levels.",
            "",
            *_table(names, rows),
        ]
    )


_MEASURED = {
    "success",
    "success_low",
    "success_high",
    "ceiling",
    "num_prompts",
    "num_samples",
    "temperature",
    "held_out",
}


def _score(name: str, values: Mapping[str, float]) -> tuple[str, ...]:
    levels, samples = int(values["num_prompts"]), int(values["num_samples"])
    return (
        name,
        interval(values, "success"),
        f"{values['ceiling']:.1%}",
        f"{levels}{', never trained on' if values['held_out'] else ''}",
        f"{levels * samples}",
        f"{values['temperature']:g}",
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (names, ["---"] * len(names), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _play_example(trained: Trained, spec: EnvSpec, task: Task) -> "_Example":
    """The first turn of the first validation level, answered with a single action."""
    _, game = build_chat(trained.config, spec)
    keys = validation_keys(trained.config.evaluation.seed, 1)
    level = jax.tree.map(lambda x: x[0], game.levels(keys))
    episode = game.episode(level, keys.noise[0])
    first = episode.prompt(0)
    name = int(np.asarray(task.env.action_names(level, task.params))[0])
    action = task.env.action_vocabulary[name]
    reply = complete_reply(action, thinking=task.dialogue.thinking)
    text = reply.removesuffix(chat.END)
    goes_on = episode.step(0, ChatReply(text, "stop", None, None, None, ""))
    second = episode.prompt(1) if goes_on and episode.max_turns > 1 else None
    fields = episode.turns[0].shown.fields
    span = task.dialogue.opening.tokens(jax.tree.map(jnp.asarray, fields))
    ids = np.asarray(span.tokens)[: int(span.length)].tolist()
    of_text = task.tokenizer.encode(task.dialogue.prompts.opening.render(fields))
    return _Example(first, second, text, ids == of_text)


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
        'reply = player(messages, **options)[0]["generated_text"][-1]',
        f'answer = re.search(r"{pattern}", reply["content"], re.DOTALL)',
        'listed = answer.group(1).split("||") if answer else []',
        "actions = [name.strip() for name in listed if name.strip()]",
        f"actions = actions[:{rules.budget.max_actions_per_turn}]",
        'print(reply["content"], actions)',
        '# The next turn: messages += [reply, {"role": "user", "content": ...}]',
    ]
    return "\n".join(["## Play a turn", "", "```python", *lines, "```"])


_THOUGHT_AND_ANSWER = r"</think>\s*<answer>(.*?)</answer>"
_ANSWER = "(.*?)</answer>"
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
    """How replies become actions."""
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
        "do not matter; tags within the answer are deleted.",
        f"* The first {_count(budget.max_actions_per_turn, 'action')} of a turn are "
        f"taken, within {_count(budget.max_turns, 'turn')} and "
        f"{_count(budget.max_actions_per_episode, 'action')} of an episode.",
        f"* A reply of training had at most {task.rules.max_reply_tokens} tokens, its "
        "end included.",
    ]
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
    if rollout.context != "single_turn":
        lines += ["", _EARLIER_REPLIES]
    if not all(example.has_text_tokens for example in examples):
        lines += ["", _OTHER_TOKENS]
    return "\n".join(lines)


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
    """The messages of an example, in full."""
    lines = [f"### Example: {task.name}", ""]
    for message in example.first:
        lines += [f"Message `{message['role']}`:", "", *_block(message["content"]), ""]
    if example.second is not None:
        answered = chat.forced_prefix(task.dialogue.thinking) + example.reply
        lines += [f"After the reply `{answered}` the next message `user`:", ""]
        lines += _block(example.second[-1]["content"])
    return "\n".join(lines).rstrip("\n")


def _block(text: str) -> list[str]:
    return ["```text", text.removesuffix("\n"), "```"]


def _settings(trained: Trained, defaults: ConfigDict) -> str:
    """Settings of the run that are no defaults."""
    config = read_run_config(trained.workdir, defaults)
    changes = changed_keys(defaults, config, free=())
    values = {key: value for key, (_, value) in changes.items()}
    if not values:
        return "All settings of the run are the defaults of `configs/base.py`."
    return "\n".join(
        [
            "## Settings",
            "",
            "Settings of the run other than the defaults of `configs/base.py`:",
            "",
            "```json",
            json.dumps(values, indent=2, ensure_ascii=False),
            "```",
        ]
    )
