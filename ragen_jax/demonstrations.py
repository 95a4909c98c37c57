"""Demonstrators: players that write whole replies, for the supervised warm start.

In: states of a game and random keys. Out: replies as tokens, thought and actions, made
on the device: a reply is a `Template` like any observation, its fields come from the
exact solver and from the board. Refuses to know losses and models.

A demonstrator is a share of the episodes, a style of thought and a noise:

    none        an empty thought
    shallow     names where the goal is, nothing else
    reading     names where everything that matters is: "P12X23O34" is the player in
                row 1, column 2, the box in row 2, column 3, the target in row 3, column
                4; "Rocket" is the arm that sounds risky
    misreading  looks like reading, but everything it names is made up

The noise is the chance that an action is drawn at random instead of taken from the
solver, and that a turn stops early at random. A mixture of such players starts a model
out mediocre but capable, as a real pre-trained model is: reinforcement learning then
has behaviours to select between.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from envs import frozen_lake, sokoban
from envs.base import EnvParams, EnvState, PlayBudget, TextEnvironment
from envs.templates import Choice, Template
from ragen_jax.rollout.device import Responder
from ragen_jax.text import chat
from ragen_jax.text.device_text import compile_template
from ragen_jax.text.prompts import SEPARATOR
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Reply

THOUGHTS = ("none", "shallow", "reading", "misreading")
NONE, SHALLOW, READING, MISREADING = range(len(THOUGHTS))
# Planning looks no further than one action at a time, so the solver's own plans of a
# turn need not be enumerated.
ONE_ACTION = PlayBudget(1, 1, 1)


@struct.dataclass
class Mixture:
    """Demonstrators and how often each plays. Axis `M`: demonstrators.

    Attributes:
      shares: chance that an episode is played by each; they sum to 1.
      thoughts: style of each, an index into `THOUGHTS`.
      noise: chance of a random action.
      redraw: chance, at every turn after the first, that another demonstrator drawn by
        its share takes over.
    """

    shares: Float[Array, " M"]
    thoughts: Int[Array, " M"]
    noise: Float[Array, " M"]
    redraw: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a thought can name in one game. Axis `W`: words of the thought.

    Attributes:
      words: the words, each with its values; option 0 is always "" (left out).
      is_shallow: which words a shallow thought keeps.
      read: `(state, params) -> Int[W]`, the true value of every word, from 1.
    """

    words: tuple[Choice, ...]
    is_shallow: tuple[bool, ...]
    read: Callable[[EnvState, EnvParams], Int[Array, " W"]]


def reply_template(env: TextEnvironment, budget: PlayBudget) -> Template:
    """A whole reply, from after the forced `<think>` to the end-of-turn token.

    Fields: the words of the game's `Reading`; per action `i` of a turn `action_i`, an
    index into the action vocabulary plus 1 with 0 for none, and `separator_i`.
    """
    parts = [*reading_of(env).words, "</think><answer>"]
    names = ("", *env.action_vocabulary)
    for i in range(budget.max_actions_per_turn):
        if i:
            parts.append(Choice(f"separator_{i}", ("", f" {SEPARATOR} ")))
        parts.append(Choice(f"action_{i}", names))
    return Template((*parts, "</answer>", chat.END))


def build_responder(
    env: TextEnvironment,
    env_params: EnvParams,
    tokenizer: Tokenizer,
    mixture: Mixture,
    *,
    tokenization: str,
    budget: PlayBudget,
    max_reply_tokens: int,
    discount: float,
) -> Responder:
    """The mixture as a `Responder` that plays the dialogues of a rollout.

    Args:
      env: what is played; `env.solve` must work inside `jit`.
      env_params: what the players believe while they plan a turn ahead.
      tokenizer, tokenization: make the replies' tokens.
      mixture: who plays.
      budget, max_reply_tokens: those of the dialogue.
      discount: of the solver; below 1 it prefers short ways where all are free.

    Raises:
      ValueError: the replies would not fit into `max_reply_tokens`.
    """
    reading = reading_of(env)
    replies = compile_template(reply_template(env, budget), tokenizer, tokenization)
    if replies.max_tokens > max_reply_tokens:
        raise ValueError(
            f"demonstrated replies of {type(env).__name__} take up to "
            f"{replies.max_tokens} tokens, max_reply_tokens = {max_reply_tokens}; "
            "raise it or lower max_actions_per_turn"
        )

    def write(keys, states, actions, count, thought):
        names = env.action_names(states, env_params)[actions]
        words = write_thought(keys, reading, reading.read(states, env_params), thought)
        return replies.tokens(reply_fields(reading, words, names, count))

    def init(num_rows: int) -> _Memory:
        zeros = jnp.zeros(num_rows, jnp.int32)
        return _Memory(
            player=zeros, actions_left=zeros + budget.max_actions_per_episode
        )

    def reply(memory, starts, states, keys, turn, is_active):
        del starts
        draw_keys, plan_keys, thought_keys = _split_rows(keys, 3)
        player = jax.vmap(_next_player, (0, None, 0, None))(
            draw_keys, mixture, memory.player, turn
        )
        actions, count = plan_turn(
            plan_keys,
            env,
            env_params,
            states,
            actions_left=memory.actions_left,
            noise=mixture.noise[player],
            max_actions=budget.max_actions_per_turn,
            discount=discount,
        )
        span = jax.vmap(write)(
            thought_keys, states, actions, count, mixture.thoughts[player]
        )
        room = max_reply_tokens - span.tokens.shape[1]
        written = Reply(
            tokens=jnp.pad(span.tokens, ((0, 0), (0, room))),
            log_probs=jnp.zeros((player.shape[0], max_reply_tokens), jnp.float32),
            length=jnp.where(is_active, span.length, 0),
            is_cut=jnp.zeros(player.shape, bool),
        )
        return _Memory(player, memory.actions_left - count), written

    return Responder(init=init, observe=_read_nothing, reply=reply)


def write_thought(
    key: Key[Array, ""], reading: Reading, true_words: Int[Array, " W"], thought: Array
) -> Int[Array, " W"]:
    """Values of the words in one thought of the given style."""
    sizes = jnp.array([len(word.options) - 1 for word in reading.words], jnp.int32)
    made_up = 1 + jax.random.randint(key, true_words.shape, 0, sizes)
    shallow = jnp.where(jnp.array(reading.is_shallow), true_words, 0)
    styles = jnp.stack([jnp.zeros_like(true_words), shallow, true_words, made_up])
    return styles[thought]


def plan_turn(
    keys: Key[Array, " B"],
    env: TextEnvironment,
    params: EnvParams,
    states: EnvState,
    *,
    actions_left: Int[Array, " B"],
    noise: Float[Array, " B"],
    max_actions: int,
    discount: float,
) -> tuple[Int[Array, "B A"], Int[Array, " B"]]:
    """One turn's actions, chosen without seeing where they lead, and how many count.

    The player imagines each next state under `params` and asks the solver there. A turn
    ends early where the imagined game does. Where the solver knows no way to win, the
    action is random.
    """
    best_of = jax.vmap(_noisy_choice)
    step = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))

    def act(carry, i):
        states, is_over, count = carry
        turn_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        choice_keys, step_keys = _split_rows(turn_keys, 2)
        solution = env.solve(states, params, budget=ONE_ACTION, discount=discount)
        actions = best_of(choice_keys, solution.action_values, noise)
        _, next_states, _, terminated, _ = step(step_keys, states, actions, params)
        counts = ~is_over & (i < actions_left)
        truncated = jax.vmap(env.is_truncated, in_axes=(0, None))(next_states, params)
        is_over = is_over | terminated | truncated
        return (next_states, is_over, count + counts), actions

    nobody = jnp.zeros(actions_left.shape, bool)
    start = (states, nobody, jnp.zeros_like(actions_left))
    (_, _, count), actions = jax.lax.scan(act, start, jnp.arange(max_actions))
    last_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, max_actions)
    stop_keys, length_keys = _split_rows(last_keys, 2)
    stops = jax.vmap(jax.random.bernoulli)(stop_keys, noise)
    lengths = jax.vmap(
        lambda key: jax.random.randint(key, (), 1, max_actions + 1, count.dtype)
    )(length_keys)
    count = jnp.where(stops, jnp.minimum(count, lengths), count)
    return jnp.swapaxes(actions, 0, 1), count


def reply_fields(
    reading: Reading,
    words: Int[Array, " W"],
    names: Int[Array, " A"],
    count: Int[Array, ""],
) -> dict[str, Int[Array, ""]]:
    """Fields of `reply_template` for one reply.

    Args:
      reading: the game's words.
      words: their values in the thought.
      names: vocabulary index of each action.
      count: actions that are written; the rest is left out.
    """
    fields = {word.name: words[i] for i, word in enumerate(reading.words)}
    for i in range(names.shape[0]):
        is_written = i < count
        fields[f"action_{i}"] = jnp.where(is_written, names[i] + 1, 0)
        if i:
            fields[f"separator_{i}"] = is_written.astype(jnp.int32)
    return fields


def reading_of(env: TextEnvironment) -> Reading:
    """What a thought can name in this game.

    Raises:
      ValueError: the game has no entry in `READINGS`.
    """
    name = type(env).__name__
    if name not in READINGS:
        raise ValueError(
            f"no demonstrator knows what to read in {name}; add it to READINGS in "
            f"ragen_jax/demonstrations.py, which has {', '.join(READINGS)}"
        )
    return READINGS[name](env)


@struct.dataclass
class _Memory:
    """A responder's memory: who plays each row, and the actions it has left."""

    player: Int[Array, " B"]
    actions_left: Int[Array, " B"]


def _read_nothing(memory, span, starts, is_active, slots) -> _Memory:
    """Demonstrators see the state itself; the message tells them nothing new."""
    del span, starts, is_active, slots
    return memory


def _next_player(
    key: Key[Array, ""], mixture: Mixture, player: Int[Array, ""], turn
) -> Int[Array, ""]:
    draw_key, change_key = jax.random.split(key)
    drawn = jax.random.categorical(draw_key, jnp.log(mixture.shares))
    changes = (turn == 0) | jax.random.bernoulli(change_key, mixture.redraw)
    return jnp.where(changes, drawn, player).astype(jnp.int32)


def _noisy_choice(
    key: Key[Array, ""], values: Float[Array, " n"], noise: Float[Array, ""]
) -> Int[Array, ""]:
    slip_key, action_key = jax.random.split(key)
    is_lost = ~jnp.isfinite(jnp.max(values))
    is_random = is_lost | jax.random.bernoulli(slip_key, noise)
    drawn = jax.random.randint(action_key, (), 0, values.shape[0], jnp.int32)
    return jnp.where(is_random, drawn, jnp.argmax(values).astype(jnp.int32))


def _split_rows(keys: Key[Array, " B"], count: int) -> tuple[Key[Array, " B"], ...]:
    """`count` fresh keys per row."""
    split = jax.vmap(lambda key: jax.random.split(key, count))(keys)
    return tuple(split[:, i] for i in range(count))


def _read_landmarks(
    env: TextEnvironment, landmarks: Mapping[int, tuple[int, ...]]
) -> Reading:
    """Symbol, row and column of each landmark, in order; shallow keeps the last one.

    Args:
      landmarks: symbol id that names it -> symbol ids that show it on the board.
    """
    board = next((p for p in env.template.parts if not isinstance(p, str)), None)
    if board is None or board.name != "board":
        raise ValueError(
            f"demonstrators of {type(env).__name__} read its picture; use "
            "observation='grid'"
        )
    rows = ("", *(str(i) for i in range(board.rows)))
    cols = ("", *(str(i) for i in range(board.cols)))
    words: list[Choice] = []
    for i, symbol in enumerate(landmarks):
        words.append(Choice(f"landmark_{i}", ("", board.symbols[symbol])))
        words += [Choice(f"row_{i}", rows), Choice(f"col_{i}", cols)]

    def read(state, params):
        cells = env.text_fields(state, params)["board"].reshape(-1)
        values = []
        for shown_as in landmarks.values():
            is_there = jnp.any(
                cells[:, None] == jnp.array(shown_as, cells.dtype)[None, :], axis=1
            )
            cell = jnp.argmax(is_there)
            values += [1, 1 + cell // board.cols, 1 + cell % board.cols]
        return jnp.stack([jnp.asarray(v, jnp.int32) for v in values])

    is_shallow = [False] * (len(words) - 3) + [True] * 3
    return Reading(tuple(words), tuple(is_shallow), read)


def read_sokoban(env: TextEnvironment) -> Reading:
    """Player, box and target; of several the first in reading order."""
    shown = {
        sokoban.PLAYER: (sokoban.PLAYER, sokoban.PLAYER_ON_TARGET),
        sokoban.BOX: (sokoban.BOX, sokoban.BOX_ON_TARGET),
        sokoban.TARGET: (
            sokoban.TARGET,
            sokoban.BOX_ON_TARGET,
            sokoban.PLAYER_ON_TARGET,
        ),
    }
    return _read_landmarks(env, shown)


def read_frozen_lake(env: TextEnvironment) -> Reading:
    """Player and goal."""
    player, goal = frozen_lake.PLAYER, frozen_lake.GOAL
    in_hole, on_goal = frozen_lake.PLAYER_IN_HOLE, frozen_lake.PLAYER_ON_GOAL
    shown = {player: (player, in_hole, on_goal), goal: (goal, on_goal)}
    return _read_landmarks(env, shown)


def read_bandit(env: TextEnvironment) -> Reading:
    """The arm that sounds risky, whether or not it is the better one.

    The vocabulary lists pairs, the name that sounds safe first.
    """
    words = (Choice("risky_arm", ("", *env.action_vocabulary)),)

    def read(state, params):
        names = env.action_names(state, params)
        return 1 + jnp.sum(jnp.where(names % 2 == 1, names, 0))[None]

    return Reading(words, (False,), read)


READINGS: dict[str, Callable[[TextEnvironment], Reading]] = {
    "Bandit": read_bandit,
    "FrozenLake": read_frozen_lake,
    "Sokoban": read_sokoban,
}
