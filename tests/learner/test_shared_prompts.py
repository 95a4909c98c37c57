"""`learner.share_prompts`: first messages are read once, and nothing else changes."""

import dataclasses
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sokoban
from ragen_jax import rngs
from ragen_jax.devices import sharding
from ragen_jax.diagnostics.gradient_buckets import make_bucket_gradients
from ragen_jax.learner import learner as learner_lib
from ragen_jax.learner.learner import Networks, build_learner
from ragen_jax.learner.logprobs import hidden_states
from ragen_jax.learner.prompts import SharedPrompts
from ragen_jax.learner.rules import needs_critic
from ragen_jax.models.critic import build_critic
from ragen_jax.models.families import new_config
from ragen_jax.models.lora import LoraConfig
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import _shared_prompts, build_program
from ragen_jax.registry.settings import flatten
from ragen_jax.types import TokenSpan
from tests import commands
from tests.learner import tiny
from tests.learner.test_update_decoder import SIZES, assert_close

MESSAGE_LENGTHS = (6, 3, 7, 4)
GROUP_SIZE = 4
PROMPTS = SharedPrompts(message_tokens=7, following_tokens=19, group_size=GROUP_SIZE)
# All groups in one minibatch, so that its composition is the same.
SETTINGS = {"minibatch_rows": 16, "optimizer__learning_rate": 1e-3}


def make_episodes():
    """Four groups of ragged first messages; episodes of one to three turns."""
    episodes = tiny.make_episodes()
    mask = np.asarray(episodes.loss_mask)
    starts = np.repeat(MESSAGE_LENGTHS, GROUP_SIZE)
    length = PROMPTS.message_tokens + PROMPTS.following_tokens
    messages = np.random.default_rng(0).integers(0, 16, (4, PROMPTS.message_tokens))

    def move(values, blank):
        """Everything from the first reply on, behind the message."""
        moved = np.full((16, length), blank)
        for row, values_of_row in enumerate(np.asarray(values)):
            rest = values_of_row[mask[row].argmax() :]
            moved[row, starts[row] :][: len(rest)] = rest
        return moved

    tokens = move(episodes.tokens, 10**6)
    for row, start in enumerate(starts):
        tokens[row, :start] = messages[row // GROUP_SIZE, :start]
    reply_start = np.asarray(episodes.turns.reply_start).copy()
    reply_start[:, 0] = starts
    return episodes.replace(
        tokens=jnp.asarray(tokens, jnp.int32),
        lengths=jnp.asarray(episodes.lengths - mask.argmax(axis=1) + starts, jnp.int32),
        loss_mask=jnp.asarray(move(mask, False)),
        turn_index=jnp.asarray(move(episodes.turn_index, -1), jnp.int32),
        sample_log_probs=jnp.asarray(
            move(np.nan_to_num(episodes.sample_log_probs), 0.0), jnp.float32
        ),
        turns=episodes.turns.replace(reply_start=jnp.asarray(reply_start)),
    )


EPISODES = make_episodes()


def make_learner(prompts, mesh, *, lora=None, remat=None, **settings):
    """The learner of a small network, and parameters to begin with."""
    model = new_config("qwen2", **SIZES)
    config = tiny.make_config(**SETTINGS | settings)
    policy, critic = build_policy(model, remat=remat), None
    if needs_critic(flatten(config)):
        how = {"dtype": "float32", "remat": remat, "lora": lora}
        critic = build_critic(model, config.critic.trunk, **how)
    data, fsdp, tensor = mesh
    mesh = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    networks = Networks(policy, critic, lora)
    learner = build_learner(config, networks, mesh, prompts=prompts)
    return learner, policy.init(jax.random.key(0))


def after(prompts, *, mesh=(1, 1, 1), episodes=EPISODES, **settings):
    """State and stats on the host after one update."""
    learner, params = make_learner(prompts, mesh, **settings)
    frozen, state = learner.freeze(params), learner.init(params, 0)
    episodes = jax.device_put(episodes, sharding.by_rows(learner.stages.passes.mesh))
    state, stats, _ = learner.update(
        frozen, learner.numbers, state, episodes, jax.random.key(7)
    )
    assert stats["actor/grad_norm"] > 0
    return tiny.host(state), jax.device_get(stats)


def all_but_the_first(rewards):
    """Rows of every group but one; entry of a filter's rule."""
    return jnp.ones(rewards.shape, bool).at[:, 0].set(False)


ADAPTERS = {"advantage": "gae", "lora": LoraConfig(rank=2, alpha=4.0)}
LEARNED = {"importance_cap": 2.0, "old_log_probs": "learner"}
KINDS = {
    "half of the groups": {},
    "all groups": {"keep_fraction": 1.0, "microbatch_rows": 8},
    "ppo with a reference": {"advantage": "gae", "placement": "loss"},
    "ppo, one trunk": {"advantage": "gae", "trunk": "shared", **LEARNED},
    "adapters": {**ADAPTERS, "placement": "reward"},
    "layers computed again": {"remat": "layers", "advantage": "gae"},
    "widths": {"learner__num_widths": 3, "keep_fraction": 1.0, **LEARNED},
    "the longest row sets the scale": {"aggregation": "seq_mean_token_sum_norm"},
    "by entropy": {"filter__score": "entropy"},
    "parts of groups": tiny.rule(f"{__name__}:all_but_the_first")
    | {"advantage": "gae", "old_log_probs": "learner", "importance_cap": 2.0},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=() if name == "all groups" else pytest.mark.slow)
        for name in KINDS
    ],
)
def test_an_update_learns_the_same(kind):
    settings = {key.replace(".", "__"): x for key, x in KINDS[kind].items()}
    assert_close(after(PROMPTS, **settings), after(None, **settings))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "microbatch_rows"),
    [
        ((2, 1, 1), 8),
        ((1, 2, 1), 8),
        ((2, 1, 2), 8),
        ((1, 2, 2), 16),
        # A group for every device that has rows.
        ((2, 2, 2), 16),
    ],
)
def test_devices_do_not_matter(mesh, microbatch_rows):
    settings = {"advantage": "gae", "placement": "loss"}
    settings |= {"microbatch_rows": microbatch_rows}
    assert_close(after(PROMPTS, mesh=mesh, **settings), after(None, **settings))


@pytest.mark.slow
def test_groups_stay_together_in_every_minibatch(monkeypatch):
    """Compared with minibatches of the same groups, read row by row."""
    settings = {"minibatch_rows": 8, "learner__epochs": 2, "keep_fraction": 0.75}
    shared = after(PROMPTS, **settings)
    assert shared[1]["actor/num_minibatches"] == 4
    of_groups = learner_lib._batch_shape
    monkeypatch.setattr(
        learner_lib, "_batch_shape", lambda config, _: of_groups(config, PROMPTS)
    )
    assert_close(shared, after(None, **settings))


@pytest.mark.slow
def test_gradients_of_groups_are_the_same():
    """The diagnostic by reward spread, with a row without trained tokens."""
    empty = jnp.arange(16)[:, None] == 5
    episodes = EPISODES.replace(loss_mask=EPISODES.loss_mask & ~empty)
    measured = []
    for prompts in (PROMPTS, None):
        learner, params = make_learner(prompts, (1, 1, 1))
        program = make_bucket_gradients(
            learner.make_stages,
            learner.stages.passes.mesh,
            num_groups=4,
            group_size=4,
            num_buckets=2,
        )
        state, buckets = learner.init(params, 0), jnp.array([0, 1, 1, 0])
        fixed = learner.freeze(params), learner.numbers
        measured.append(program(*fixed, state, episodes, buckets))
    chex.assert_trees_all_close(*measured, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_another_message_of_a_failed_game_is_not_read():
    """It has no trained tokens, even if it is the first row of its group."""
    failed = jnp.arange(16)[:, None] % GROUP_SIZE == 0
    quiet = EPISODES.replace(loss_mask=EPISODES.loss_mask & ~failed)
    turns = quiet.turns.replace(
        reply_start=jnp.where(failed, 1, quiet.turns.reply_start)
    )
    other = quiet.replace(tokens=jnp.where(failed, 3, quiet.tokens), turns=turns)
    assert_close(after(PROMPTS, episodes=other), after(None, episodes=quiet))


@pytest.mark.slow
def test_a_run_learns_the_same(tmp_path):
    """Real messages, whose lengths the rollout records."""
    model, learned = commands.tiny_model(tmp_path / "model"), []
    for share in (True, False):
        config = commands.tiny_config(
            sokoban,
            model,
            learner__share_prompts=share,
            learner__minibatch_rows=8,
            evaluation__every=None,
        )
        program = build_program(config)
        key, state = rngs.step_key(rngs.root_key(5), 0), program.state
        batch = program.join(program.collect(program.play_params(state), key))
        assert len(set(np.asarray(batch.lengths))) > 1
        state, stats, _ = program.update(state, batch, key)
        learned.append((tiny.host(state), jax.device_get(stats)))
    assert_close(*learned)


@pytest.mark.parametrize("remat", [None, "layers"])
def test_hidden_states_and_gradients_follow_the_prompts(remat):
    """Three rows of each of two ragged prompts."""
    policy = build_policy(new_config("qwen2", **SIZES), remat=remat)
    params, random = policy.init(jax.random.key(0)), np.random.default_rng(0)
    lengths = np.array([6, 3])
    prompts, rows = random.integers(0, 16, (2, 7)), random.integers(0, 16, (6, 5))
    whole = [np.append(prompts[i // 3][: lengths[i // 3]], rows[i]) for i in range(6)]
    padded = np.array(
        [np.pad(row, (0, 11 - len(row)), constant_values=9) for row in whole]
    )
    weights = random.normal(size=(6, 5, SIZES["hidden_size"]))

    def once_per_row(params):
        hidden = hidden_states(policy, params, jnp.asarray(padded))
        starts = np.repeat(lengths, 3)[:, None] + np.arange(5)
        hidden = jnp.take_along_axis(hidden, starts[:, :, None], axis=1)
        return jnp.sum(hidden * weights), hidden

    def once_per_prompt(params):
        span = TokenSpan(jnp.asarray(prompts), jnp.asarray(lengths))
        hidden = hidden_states(policy, params, jnp.asarray(rows), prompts=span)
        return jnp.sum(hidden * weights), hidden

    found, expected = (
        jax.jit(jax.grad(function, has_aux=True))(params)
        for function in (once_per_prompt, once_per_row)
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-3, atol=2e-5)


def test_rows_are_cut_behind_the_message_and_put_back():
    sizes = SharedPrompts(message_tokens=4, following_tokens=3, group_size=2)
    tokens = jnp.arange(28).reshape(4, 7)
    mask = jnp.array([[False] * 7] + [[False] * 6 + [True]] * 3)
    # The first row has no trained tokens: its message is not read.
    message_lengths = jnp.array([1, 4, 3, 3])
    prompts = sizes.read(tokens, mask, message_lengths)
    assert prompts.length.tolist() == [3, 2]
    assert prompts.tokens.tolist() == [[7, 8, 9], [14, 15, 16]]
    rows, per_row = sizes.cut((tokens, message_lengths), prompts)
    assert rows[1:3].tolist() == [[10, 11, 12, 13], [16, 17, 18, 19]]
    assert per_row is message_lengths
    back = sizes.put_back(rows, prompts, 7)
    assert back[1:3].tolist() == [[0] * 3 + [10, 11, 12, 13], [0, 0, *range(16, 20), 0]]


def test_rows_shorter_than_the_longest_message_and_rest_are_padded():
    """Games of a mix: one has the longest message, another the longest rest."""
    sizes = SharedPrompts(message_tokens=4, following_tokens=4, group_size=1)
    prompts = TokenSpan(jnp.zeros((1, 3), jnp.int32), jnp.array([3]))
    rows = sizes.cut(jnp.arange(6)[None], prompts)
    assert rows.tolist() == [[3, 4, 5, 0, 0]]
    assert sizes.put_back(rows, prompts, 6).tolist() == [[0, 0, 0, 3, 4, 5]]


def test_sizes_are_the_largest_of_all_games():
    def task(opening, longest):
        dialogue = types.SimpleNamespace(
            opening=types.SimpleNamespace(max_tokens=opening),
            max_trajectory_tokens=longest,
        )
        return types.SimpleNamespace(dialogue=dialogue)

    tasks, config = [task(30, 50), task(10, 45)], tiny.make_config(share_prompts=True)
    expected = SharedPrompts(message_tokens=30, following_tokens=35, group_size=4)
    assert _shared_prompts(config, tasks) == expected
    assert _shared_prompts(tiny.make_config(), tasks) is None


def test_the_default_reads_every_row_whole():
    """No array of the update is another one than without the setting."""
    learner, _ = make_learner(None, (1, 1, 1))
    assert learner.stages.passes.prompts is None
    rows = EPISODES.tokens, EPISODES.loss_mask, None
    prompts, arrays = learner.stages.passes._apart(rows, rows[:2])
    assert prompts is None
    assert arrays == rows[:2]
    assert dataclasses.replace(learner.stages.passes).whole_groups(rows[1]) is rows[1]
