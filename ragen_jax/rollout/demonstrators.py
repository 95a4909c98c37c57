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
    misreading  looks like reading, but all places and names are made up
    predicting  reading, and then the same once more for the end of the turn, as the
                player imagines it: "P12X23O34P13X23O34"

The noise is the chance that an action is drawn at random instead of taken from the
solver, and that a turn stops early at random. A mixture of such players starts a model
out mediocre but capable, as a real pre-trained model is: reinforcement learning then
has behaviours to select between.
"""

import dataclasses
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs.base import (
    EnvParams,
    EnvState,
    PlayBudget,
    StateFacts,
    TextEnvironment,
    TextGame,
)
from envs.templates import Choice, Template
from ragen_jax.rollout.turns import EpisodeLimits, Responder
from ragen_jax.text import chat
from ragen_jax.text.prompts import SEPARATOR
from ragen_jax.text.token_templates import DeviceTemplate, compile_template
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Reply, TokenSpan

# Between the thought and the first action; the thought's opening tag is the template's.
ANSWER_BEGIN = "</think><answer>"
THOUGHTS = ("none", "shallow", "reading", "misreading", "predicting")
NONE, SHALLOW, READING, MISREADING, PREDICTING = range(len(THOUGHTS))
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


def with_predictions(facts: StateFacts) -> StateFacts:
    """Facts that are stated twice, of the states before and after a turn."""
    return dataclasses.replace(
        facts,
        words=facts.words * 2,
        statements=facts.statements * 2,
        is_shallow=(*facts.is_shallow, *(False for _ in facts.words)),
        num_predicted=len(facts.words),
    )


def reply_template(
    env: TextGame,
    budget: PlayBudget,
    facts: StateFacts,
    *,
    thinking: bool = True,
    end: str = chat.END,
) -> Template:
    """A whole reply, from after the forced tag to the end-of-turn token.

    Fields: where the player thinks, per statement `statement_i` of the facts, 0 where
    it is left out; per action of a turn those of `_action_parts`. An option
    includes the text before its word, so that pieces meet only at token boundaries: a
    tokenizer may have a token for `>R`, for ` Down`, or for `></`, so there is always
    a first action.
    """
    statements = _spelled(facts) if thinking else []
    parts = [
        Choice(f"statement_{i}", ("", *map("".join, itertools.product(*spelled))))
        for i, spelled in enumerate(statements)
    ]
    begin = ANSWER_BEGIN if thinking else ""
    for i in range(budget.max_actions_per_turn):
        parts += _action_parts(env, i, begin)
    return Template((*parts, "</answer>", end))


def _action_parts(env: TextGame, i: int, begin: str) -> list[Choice]:
    """Action `i` of a reply, with the text before it.

    A name is one field `action_i`; written by several choices, they are `action_i_NAME`
    and `action_i_lead` precedes them. All are 0 where there is no such action.
    """
    lead = f" {SEPARATOR} " if i else begin
    parts = env.action_template.parts
    if len(parts) == 1:
        options = tuple(f"{lead}{option}" for option in parts[0].options[1:])
        return [Choice(f"action_{i}", ("", *options) if i else options)]
    named = [dataclasses.replace(p, name=f"action_{i}_{p.name}") for p in parts]
    return [Choice(f"action_{i}_lead", ("", lead)), *named]


def _action_fields(
    written: Mapping[str, Int[Array, ""]], i: int, is_there: Bool[Array, ""]
) -> dict[str, Int[Array, ""]]:
    if len(written) == 1:
        (value,) = written.values()
        # The first action is always there, and has no option for none.
        return {f"action_{i}": jnp.where(is_there, value, 0) if i else value - 1}
    fields = {f"action_{i}_{name}": value for name, value in written.items()}
    fields[f"action_{i}_lead"] = jnp.int32(1)
    return {name: jnp.where(is_there, value, 0) for name, value in fields.items()}


def compile_replies(
    env: TextEnvironment,
    tokenizer: Tokenizer,
    facts: StateFacts,
    budget: PlayBudget,
    *,
    tokenization: str,
    thinking: bool = True,
) -> DeviceTemplate:
    """`reply_template` as tokens; `tokenization` and `thinking` are the dialogue's."""
    end = tokenizer.markup.end
    template = reply_template(env, budget, facts, thinking=thinking, end=end)
    return compile_template(template, tokenizer, tokenization)


def build_responder(
    env: TextEnvironment,
    env_params: EnvParams,
    replies: DeviceTemplate,
    mixture: Mixture,
    *,
    facts: StateFacts,
    rules: EpisodeLimits,
    discount: float,
) -> Responder:
    """The mixture as a `Responder` that plays the dialogues of a rollout.

    Args:
      env: the game; `env.solve` must work inside `jit`.
      env_params: parameters that the players plan with.
      replies: see `compile_replies`.
      mixture: the players and their shares.
      facts: what their thoughts can state, see `TextEnvironment.facts`.
      rules: those of the dialogue.
      discount: of the solver; below 1 it prefers short paths where actions are free.

    Raises:
      ValueError: the replies would not fit into `rules.max_reply_tokens`.
    """
    budget, max_reply_tokens = rules.budget, rules.max_reply_tokens
    if replies.max_tokens > max_reply_tokens:
        raise ValueError(
            f"demonstrated replies of {type(env).__name__} take up to "
            f"{replies.max_tokens} tokens, max_reply_tokens = {max_reply_tokens}; "
            "raise it or lower max_actions_per_turn"
        )

    def init(num_rows: int) -> _Players:
        zeros = jnp.zeros(num_rows, jnp.int32)
        return _Players(
            player=zeros, actions_left=zeros + budget.max_actions_per_episode
        )

    def write(key, state, after, written, count, thought) -> TokenSpan:
        words = facts.read(state, env_params)
        if facts.num_predicted:
            words = jnp.concatenate([words, facts.read(after, env_params)])
        words = write_thought(key, facts, words, thought)
        return replies.tokens(reply_fields(facts, words, written, count))

    def reply(players, starts, states, keys, turn, is_active):
        del starts
        draw_keys, plan_keys, thought_keys = _split_rows(keys, 3)
        player = jax.vmap(_next_player, (0, None, 0, None))(
            draw_keys, mixture, players.player, turn
        )
        plan = plan_turn(
            plan_keys,
            env,
            env_params,
            states,
            actions_left=players.actions_left,
            noise=mixture.noise[player],
            max_actions=budget.max_actions_per_turn,
            discount=discount,
        )
        thoughts = mixture.thoughts[player]
        planned = plan.after, plan.written, plan.count
        span = jax.vmap(write)(thought_keys, states, *planned, thoughts)
        players = _Players(player, players.actions_left - plan.count)
        return players, _as_reply(span, is_active, max_reply_tokens)

    return Responder(init=init, observe=_read_nothing, reply=reply)


def write_thought(
    key: Key[Array, ""], facts: StateFacts, true_words: Int[Array, " W"], thought: Array
) -> Int[Array, " W"]:
    """Values of the words in one thought of the given style."""
    sizes = jnp.array([len(word.options) - 1 for word in facts.words], jnp.int32)
    made_up = 1 + jax.random.randint(key, true_words.shape, 0, sizes)
    shallow = jnp.where(jnp.array(facts.is_shallow, bool), true_words, 0)
    is_predicted = jnp.arange(len(sizes)) >= len(sizes) - facts.num_predicted
    read, misread = (
        jnp.where(is_predicted, 0, words) for words in (true_words, made_up)
    )
    nothing = jnp.zeros_like(true_words)
    return jnp.stack([nothing, shallow, read, misread, true_words])[thought]


@struct.dataclass
class Plan:
    """What a player does in a turn. Axis `A`: actions.

    Attributes:
      actions: to be taken.
      written: how each is written (`TextEnvironment.action_fields`).
      count: how many of them count.
      after: the state that the player imagines at the end.
    """

    actions: Int[Array, "B A"]
    written: dict[str, Int[Array, "B A"]]
    count: Int[Array, " B"]
    after: EnvState


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
) -> Plan:
    """One turn's actions, chosen without seeing where they lead.

    The player imagines each next state under `params` and asks the solver there. A turn
    ends early where the imagined game does. Where the solver knows no way to win, the
    action is random.
    """
    best_of = jax.vmap(_noisy_choice)
    step = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))
    write = jax.vmap(env.action_fields, in_axes=(0, 0, None))
    last_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, max_actions)
    limits = jax.vmap(_noisy_limit, (0, 0, None))(last_keys, noise, max_actions)

    def act(carry, i):
        states, is_over, count, after = carry
        turn_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        choice_keys, step_keys = _split_rows(turn_keys, 2)
        solution = env.solve(states, params, budget=ONE_ACTION, discount=discount)
        actions = best_of(choice_keys, solution.action_values, noise)
        written = write(actions, states, params)
        _, next_states, _, terminated, _ = step(step_keys, states, actions, params)
        counts = ~is_over & (i < actions_left) & (i < limits)
        after = jax.vmap(_choose)(counts, next_states, after)
        truncated = jax.vmap(env.is_truncated, in_axes=(0, None))(next_states, params)
        is_over = is_over | terminated | truncated
        count = count + counts.astype(jnp.int32)
        return (next_states, is_over, count, after), (actions, written)

    none_over = jnp.zeros(actions_left.shape, bool)
    start = (states, none_over, jnp.zeros_like(actions_left), states)
    (_, _, count, after), chosen = jax.lax.scan(act, start, jnp.arange(max_actions))
    actions, written = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), chosen)
    return Plan(actions, written, count, after)


def _choose(condition: Bool[Array, ""], new: EnvState, old: EnvState) -> EnvState:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def reply_fields(
    facts: StateFacts,
    words: Int[Array, " W"],
    written: Mapping[str, Int[Array, " A"]],
    count: Int[Array, ""],
) -> dict[str, Int[Array, ""]]:
    """Fields of `reply_template` for one reply.

    Args:
      facts: those of the game.
      words: their values in the thought.
      written: `TextEnvironment.action_fields` of each action.
      count: actions that are written, at least one; the rest is left out.
    """
    fields = {}
    start = 0
    for i, spelled in enumerate(_spelled(facts)):
        # The index of the statement among all possible ones.
        place = jnp.int32(0)
        for j, texts in enumerate(spelled):
            place = place * len(texts) + words[start + j] - 1
        fields[f"statement_{i}"] = jnp.where(words[start] > 0, 1 + place, 0)
        start += len(spelled)
    (max_actions,) = next(iter(written.values())).shape
    for i in range(max_actions):
        of_action = {name: values[i] for name, values in written.items()}
        fields |= _action_fields(of_action, i, i < count)
    return fields


def _spelled(facts: StateFacts) -> list[list[tuple[str, ...]]]:
    words = iter(facts.words)
    return [
        [word.options[1:] for word in itertools.islice(words, size)]
        for size in facts.statements
    ]


@struct.dataclass
class _Players:
    """Per row: the player, and the actions it has left."""

    player: Int[Array, " B"]
    actions_left: Int[Array, " B"]


def _read_nothing(players, span, starts, is_active, slots) -> _Players:
    """No reading: demonstrators see the state itself."""
    del span, starts, is_active, slots
    return players


def _as_reply(
    span: TokenSpan, is_active: Bool[Array, " B"], max_reply_tokens: int
) -> Reply:
    """A written reply in the shape of a sampled one; it always ends by itself."""
    num_rows, width = span.tokens.shape
    padding = ((0, 0), (0, max_reply_tokens - width))
    return Reply(
        tokens=jnp.pad(span.tokens, padding),
        log_probs=jnp.zeros((num_rows, max_reply_tokens), jnp.float32),
        length=jnp.where(is_active, span.length, 0),
        is_cut=jnp.zeros(num_rows, bool),
    )


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


def _noisy_limit(
    key: Key[Array, ""], noise: Float[Array, ""], max_actions: int
) -> Int[Array, ""]:
    stop_key, limit_key = jax.random.split(key)
    limit = jax.random.randint(limit_key, (), 1, max_actions + 1, jnp.int32)
    return jnp.where(jax.random.bernoulli(stop_key, noise), limit, max_actions)


def _split_rows(keys: Key[Array, " B"], count: int) -> tuple[Key[Array, " B"], ...]:
    split = jax.vmap(lambda key: jax.random.split(key, count))(keys)
    return tuple(split[:, i] for i in range(count))
