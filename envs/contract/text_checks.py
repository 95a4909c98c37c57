"""The contract of an environment's text: states as displayed, actions as written.

In: a `Subject`. Out: nothing, or a `ContractError` that says what is broken.
"""

import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import TextEnvironment
from envs.contract.subject import (
    NUM_ROWS,
    Check,
    ContractError,
    Subject,
    expect,
    rows,
)
from envs.templates import Cells, Choice, Grid, Number

# Actions of every row that are written and read again.
_NUM_DRAWS = 4


def text_fields_fit_the_template(subject: Subject) -> None:
    """The fields of a state have the names, shapes and ranges of the template."""
    env = subject.env
    fields = jax.jit(jax.vmap(env.text_fields, in_axes=(0, None)))
    for states, _ in subject.play:
        values = jax.device_get(fields(states, subject.params))
        expect(
            set(values) == set(env.template.fields),
            f"text_fields has {sorted(values)}, the template "
            f"{sorted(env.template.fields)}",
        )
        for part in env.template.parts:
            if not isinstance(part, str):
                for problem in _field_problems(part, values[part.name]):
                    raise ContractError(f"the field {part.name} {problem}")


def _field_problems(part, value: np.ndarray) -> Iterator[str]:
    if not (np.issubdtype(value.dtype, np.integer) or value.dtype == np.bool_):
        yield f"must be whole numbers; it is {value.dtype}"
    is_board = isinstance(part, Grid | Cells)
    shape = (NUM_ROWS, part.rows, part.cols) if is_board else (NUM_ROWS,)
    if value.shape != shape:
        yield f"has shape {value.shape[1:]}; the template has {shape[1:]}"
    if isinstance(part, Choice | Grid):
        options = part.options if isinstance(part, Choice) else part.symbols
        if not ((value >= 0) & (value < len(options))).all():
            yield f"is outside 0 to {len(options) - 1}"
    elif isinstance(part, Number):
        if not ((value >= part.minimum) & (value <= part.maximum)).all():
            yield f"is outside {part.minimum} to {part.maximum}"
    elif ((value != 0).sum((1, 2)) > part.max_cells).any():
        yield f"lists more than {part.max_cells} cells"


def the_legend_explains_the_picture(subject: Subject) -> None:
    """The instruction names every symbol of a rendered board."""
    env = subject.env
    expect(env.instruction, "there is no instruction")
    expect(not env.instruction.endswith("\n"), "the instruction ends with a newline")
    words = re.split(r"[\s.,:;!?()]+", env.instruction) + env.instruction.split()
    for part in env.template.parts:
        if not isinstance(part, Grid):
            continue
        for symbol in part.symbols:
            expect(symbol in words, f"the instruction does not explain {symbol!r}")
        text = env.render(rows(subject.reset()[1])[0], subject.params)
        expect(
            re.search(f"^{part.pattern}", text, re.MULTILINE),
            "a rendered board is not whole, or has symbols that the template lacks",
        )


def text_is_whole_lines(subject: Subject) -> None:
    """Rendered states are whole lines without gaps."""
    states = rows(subject.reset()[1])[:16]
    for text in (subject.env.render(state, subject.params) for state in states):
        expect(text.endswith("\n"), "a rendered state must end with a newline")
        expect("\n\n" not in text, "a rendered state has an empty line")


def action_names_are_distinct_words(subject: Subject) -> None:
    """The words of the vocabulary differ, and so do the names of a level's actions."""
    env = subject.env
    if env.answer_bytes:
        expect(
            env.action_hint and not env.action_vocabulary,
            "a game that reads answers itself has an action_hint, but not an "
            "action_vocabulary",
        )
        return
    names = jax.vmap(env.action_names, in_axes=(0, None))(
        subject.reset()[1], subject.params
    )
    vocabulary = [name.strip().lower() for name in env.action_vocabulary]
    expect(
        len(set(vocabulary)) == len(vocabulary), "action_vocabulary has a word twice"
    )
    expect([bool(word) for word in vocabulary], "action_vocabulary has an empty word")
    expect(
        names.shape == (NUM_ROWS, env.num_actions),
        "action_names must name every action",
    )
    for row in np.asarray(names):
        expect(row >= 0, "action_names are indices into action_vocabulary, from 0")
        expect(
            len({env.action_vocabulary[i] for i in row}) == env.num_actions,
            "two actions of a state have the same name",
        )


def actions_are_read_as_written(subject: Subject) -> None:
    """What `action_template` writes of an action is read as that action.

    Two actions may be written alike, such as sums of equal numbers.
    """
    env, params = subject.env, subject.params
    parts = env.action_template.parts
    expect(
        [isinstance(p, Choice) and p.options[0] == "" for p in parts],
        'action_template must consist of Choices with "" as their first option',
    )
    if not env.answer_bytes:
        return
    read = jax.jit(jax.vmap(env.read_action, in_axes=(0, 0, 0, None)))
    write = jax.jit(jax.vmap(env.action_fields, in_axes=(0, 0, None)))
    _, states = subject.reset()
    keys = jax.random.split(jax.random.key(2), _NUM_DRAWS)
    for key in keys:
        actions = jax.random.randint(key, (NUM_ROWS,), 0, env.num_actions)
        texts = _written(env, write(actions, states, params))
        expect(
            [0 < len(text) <= env.answer_bytes for text in texts],
            f"an action is written in {max(map(len, texts))} bytes; answer_bytes is "
            f"{env.answer_bytes}",
        )
        padded = [text.encode().ljust(env.answer_bytes, b"\0") for text in texts]
        table = np.stack([np.frombuffer(row, np.uint8) for row in padded])
        sizes = jnp.array([len(text) for text in texts], jnp.int32)
        actions_read = read(jnp.asarray(table), sizes, states, params)
        expect(actions_read.dtype == jnp.int32, "read_action must return int32")
        expect(
            actions_read >= 0, "read_action does not read what action_template writes"
        )
        again = _written(env, write(actions_read, states, params))
        expect(
            [a == b for a, b in zip(texts, again, strict=True)],
            "read_action reads another action than action_template writes",
        )


def _written(env: TextEnvironment, fields) -> list[str]:
    return [env.action_template.render(row) for row in rows(fields)]


TEXT_CHECKS: tuple[Check, ...] = (
    text_fields_fit_the_template,
    the_legend_explains_the_picture,
    text_is_whole_lines,
    action_names_are_distinct_words,
    actions_are_read_as_written,
)
