"""Demonstrators: what they think, what they do, and the tokens they write."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import NO_FACTS, PlayBudget, TextEnvironment
from ragen_jax import rngs
from ragen_jax.program.build import POCKET
from ragen_jax.rollout import demonstrators
from ragen_jax.rollout.demonstrators import Mixture
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.sft.data import build_demo_tasks, make_demonstrate
from ragen_jax.sft.sampler import make_draw
from ragen_jax.text.token_templates import compile_template
from ragen_jax.text.tokenizer import load_tokenizer
from tests.reference.tokenizers import train_qwen_style
from tests.sft import tiny

BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=4, max_actions_per_episode=10)


@functools.cache
def levels(name, **kwargs):
    """An environment and 64 of its levels; making them compiles for seconds."""
    env = envs.make(name, **kwargs)
    keys = jax.random.split(jax.random.key(0), 64)
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    return env, reset(keys, env.default_params)[1]


def take(states, i):
    return jax.tree.map(lambda x: x[i], states)


def words_as_text(facts, values):
    return "".join(
        word.options[int(value)]
        for word, value in zip(facts.words, values, strict=True)
    )


def find(picture, symbols):
    for row, line in enumerate(picture.splitlines()):
        for col, symbol in enumerate(line):
            if symbol in symbols:
                return f"{row}{col}"
    raise AssertionError("not on the board")


@pytest.mark.parametrize(
    ("name", "landmarks"),
    [
        ("sokoban", {"P": "PS", "X": "X√", "O": "O√S"}),
        ("frozen_lake", {"P": "PX√", "G": "G√"}),
    ],
)
def test_facts_name_what_the_picture_shows(name, landmarks):
    env, states = levels(name)
    facts = env.facts()
    for i in range(12):
        state = take(states, i)
        picture = env.render(state, env.default_params)
        expected = "".join(k + find(picture, shown) for k, shown in landmarks.items())
        values = facts.read(state, env.default_params)
        assert words_as_text(facts, values) == expected


def test_the_facts_of_bandit_name_the_risky_arm_whatever_pays():
    for reverse in (False, True):
        env, states = levels("bandit", reverse=reverse)
        facts = env.facts()
        for i in range(12):
            values = facts.read(take(states, i), env.default_params)
            index = env.action_vocabulary.index(words_as_text(facts, values))
            assert index % 2 == 1
            names = env.action_names(take(states, i), env.default_params)
            assert index in names.tolist()


def test_styles_of_thought():
    env, states = levels("sokoban")
    facts = env.facts()
    true = jax.vmap(facts.read, (0, None))(states, env.default_params)
    keys = jax.random.split(jax.random.key(1), 64)

    def write(thought):
        return jax.vmap(
            lambda key, words: demonstrators.write_thought(key, facts, words, thought)
        )(keys, true)

    np.testing.assert_array_equal(write(demonstrators.NONE), jnp.zeros_like(true))
    np.testing.assert_array_equal(write(demonstrators.READING), true)
    shallow = write(demonstrators.SHALLOW)
    np.testing.assert_array_equal(shallow[:, :6], jnp.zeros((64, 6), jnp.int32))
    np.testing.assert_array_equal(shallow[:, 6:], true[:, 6:])
    made_up = write(demonstrators.MISREADING)
    sizes = [len(word.options) - 1 for word in facts.words]
    assert (made_up >= 1).all()
    assert (made_up <= jnp.array(sizes)[None, :]).all()
    # Six coordinates guessed right at once: 6**-6 per level.
    assert (made_up != true).any(axis=1).sum() >= 62


@pytest.fixture(scope="module")
def sokoban_plan():
    env, states = levels("sokoban")
    keys = jax.random.split(jax.random.key(2), 64)

    @jax.jit
    def plan(noise, actions_left):
        return demonstrators.plan_turn(
            keys,
            env,
            env.default_params,
            states,
            actions_left=jnp.full(64, actions_left, jnp.int32),
            noise=jnp.full(64, noise, jnp.float32),
            max_actions=4,
            discount=0.95,
        )

    return env, states, plan


def test_without_noise_a_plan_is_the_start_of_a_shortest_solution(sokoban_plan):
    env, states, plan = sokoban_plan
    planned = plan(0.0, 10)
    actions, count = planned.actions, planned.count
    distance = env.shortest_solution_length(states)
    np.testing.assert_array_equal(count, jnp.minimum(distance, 4))
    key = jax.random.key(0)
    for i in range(8):
        state = take(states, i)
        for action in actions[i, : int(count[i])]:
            _, state, _, _, _ = env.step_env(key, state, action, env.default_params)
        for x, y in zip(
            jax.tree.leaves(state), jax.tree.leaves(take(planned.after, i)), strict=True
        ):
            np.testing.assert_array_equal(x, y)
        left = env.shortest_solution_length(jax.tree.map(lambda x: x[None], state))
        assert int(left[0]) == int(distance[i]) - int(count[i])


def test_a_plan_fits_the_actions_left(sokoban_plan):
    _, _, plan = sokoban_plan
    assert int(plan(0.0, 2).count.max()) == 2
    assert int(plan(1.0, 3).count.max()) == 3


def test_noise_makes_actions_and_lengths_random(sokoban_plan):
    _, _, plan = sokoban_plan
    planned = plan(1.0, 10)
    actions, count = planned.actions, planned.count
    # 256 uniform draws of 4: a share outside this range is 5 sigma away.
    shares = np.bincount(np.asarray(actions).reshape(-1), minlength=4) / actions.size
    assert shares.min() > 0.11
    assert shares.max() < 0.39
    assert len(np.unique(np.asarray(count))) == 4


def mixture(*players, redraw=0.0):
    """Players are (share, thought, noise)."""
    shares, thoughts, noise = zip(*players, strict=True)
    return Mixture(
        shares=jnp.array(shares, jnp.float32),
        thoughts=jnp.array([demonstrators.THOUGHTS.index(t) for t in thoughts]),
        noise=jnp.array(noise, jnp.float32),
        redraw=jnp.float32(redraw),
    )


def test_players_stay_unless_redrawn():
    keys = jax.random.split(jax.random.key(3), 400)

    def next_players(redraw, turn):
        players = mixture((0.5, "none", 1.0), (0.5, "reading", 0.0), redraw=redraw)
        return jax.vmap(demonstrators._next_player, (0, None, None, None))(
            keys, players, jnp.int32(1), turn
        )

    assert (next_players(0.0, 1) == 1).all()
    # Binomial(400, 1/2) leaves this range with probability below 1e-6.
    assert 150 < int((next_players(0.0, 0) == 0).sum()) < 250
    assert 150 < int((next_players(1.0, 1) == 0).sum()) < 250


@pytest.fixture(scope="module")
def played():
    """FrozenLake by a solver that reads and a guesser that does not think."""
    tokenizer = load_tokenizer(POCKET)
    config = tiny.demo_config(
        "frozen_lake",
        episodes=32,
        max_turns=2,
        max_actions_per_turn=2,
        max_actions_per_episode=3,
    )
    config.max_reply_tokens = 20
    tasks = build_demo_tasks(config, tokenizer)
    demonstrate = make_demonstrate(tasks, tokenization="symbols", discount=0.95)
    dialogues = {name: demo.task.dialogue for name, demo in tasks.items()}
    players = mixture((0.5, "reading", 0.0), (0.5, "none", 1.0))
    draws = make_draw(tasks, rngs.root_key(0), num_epochs=None)(1)
    batch, success = jax.jit(demonstrate)(draws, players, dialogues, {})
    return tokenizer, batch, success


@pytest.mark.parametrize("name", ["sokoban", "frozen_lake", "bandit"])
def test_replies_by_rows_have_the_tokenizer_s_own_ids(name, tmp_path):
    """A pre-trained model writes `>Rocket` and ` Down` with tokens over the border."""
    env = envs.make(name)
    text = "".join(f"<answer>{action} || {action}" for action in env.action_vocabulary)
    texts = (text, "<think></think><answer></answer>")
    tokenizer = load_tokenizer(train_qwen_style(tmp_path, texts=texts))
    over_border = tokenizer.encode(f">{env.action_vocabulary[-1]}")
    assert over_border[0] != tokenizer.encode(">")[0]
    assert len(tokenizer.encode("></")) == 1
    for facts in (NO_FACTS, env.facts()):
        template = demonstrators.reply_template(env, BUDGET, facts)
        compiled = compile_template(template, tokenizer, "rows")
        rng = np.random.default_rng(0)
        for count in range(1, 5):
            words = [rng.integers(1, len(word.options)) for word in facts.words]
            if count == 1:
                words = [0] * len(words)
            fields = demonstrators.reply_fields(
                facts,
                jnp.array(words, jnp.int32),
                {
                    "name": 1
                    + jnp.asarray(rng.integers(0, len(env.action_vocabulary), 4))
                },
                jnp.int32(count),
            )
            span = compiled.tokens(fields)
            ids = np.asarray(span.tokens)[: int(span.length)].tolist()
            written = tokenizer.decode(ids)
            assert tokenizer.encode(written) == ids
            thought, answer = written.split("</think><answer>")
            assert thought == words_as_text(facts, words)
            assert answer.endswith("</answer><|im_end|>")
            assert answer.count(" || ") == count - 1


REPLY = r"((?:P\d\dG\d\d)?)</think><answer>(\w+(?: \|\| \w+)?)</answer><\|im_end\|>"


def test_the_loss_covers_whole_replies_and_nothing_else(played):
    tokenizer, batch, _ = played
    thoughts = []
    for tokens, length, mask in zip(
        np.asarray(batch.tokens),
        batch.lengths,
        np.asarray(batch.loss_mask),
        strict=True,
    ):
        text = tokenizer.decode(tokens[: int(length)])
        replies = [m.group() for m in re.finditer(REPLY, text)]
        # A reply follows every header and ends the episode.
        assert len(replies) == text.count("<|im_start|>assistant\n<think>")
        assert text.endswith(replies[-1])
        assert tokenizer.decode(tokens[mask]) == "".join(replies)
        assert not mask[int(length) :].any()
        thoughts += [re.match(REPLY, reply).group(1) for reply in replies]
    assert 0 < sum(map(bool, thoughts)) < len(thoughts)


def test_demonstrated_play_is_what_the_parser_understood(played):
    tokenizer, batch, success = played
    first = tokenizer.decode(np.asarray(batch.tokens)[0][: int(batch.lengths[0])])
    assert "Invalid" not in "".join(
        tokenizer.decode(t[: int(n)])
        for t, n in zip(np.asarray(batch.tokens), batch.lengths, strict=True)
    )
    assert first.startswith("<|im_start|>system\nfrozenlake")
    assert 0 < float(success["frozen_lake"]) < 1


def test_a_reply_must_fit():
    env = envs.make("sokoban")
    tokenizer = load_tokenizer(POCKET)
    replies = demonstrators.compile_replies(
        env, tokenizer, env.facts(), BUDGET, tokenization="symbols"
    )
    with pytest.raises(ValueError, match="take up to 20 tokens, max_reply_tokens = 19"):
        demonstrators.build_responder(
            env,
            env.default_params,
            replies,
            mixture((1.0, "none", 0.0)),
            facts=env.facts(),
            rules=EpisodeLimits(BUDGET, max_reply_tokens=19),
            discount=1.0,
        )


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="use observation='grid'"):
        envs.make("sokoban", observation="coord").facts()

    class Chess(TextEnvironment):
        pass

    with pytest.raises(ValueError, match="cannot think about Chess"):
        Chess().facts()
