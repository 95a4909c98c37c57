"""The supervised warm start: its gradient, its settings, its run folder."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import pocket
from ragen_jax import lessons, warm_start
from ragen_jax.lesson_scores import thought_scores
from ragen_jax.lessons import Batch
from ragen_jax.models.hf_weights import load_checkpoint
from ragen_jax.models.qwen2 import build_policy
from ragen_jax.models.qwen2_config import Qwen2Config
from ragen_jax.text.tokenizer import load_tokenizer
from tests.trajectories import make_trajectory

TINY = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def model():
    config = Qwen2Config(
        vocab_size=32,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.3,
        **TINY,
    )
    policy = build_policy(config)
    return policy, policy.init(jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 21, 8)
    is_text = np.arange(20)[None, :] < lengths[:, None]
    return Batch(
        tokens=jnp.asarray(rng.integers(0, 32, (8, 20)), jnp.int32),
        lengths=jnp.asarray(lengths, jnp.int32),
        loss_mask=jnp.asarray(is_text & (rng.random((8, 20)) < 0.5)),
    )


def plain_loss(policy, params, batch):
    """Mean over masked tokens, one row and one token at a time."""
    losses = []
    for tokens, mask in zip(batch.tokens, np.asarray(batch.loss_mask), strict=True):
        hidden, _ = policy.forward(params, tokens[None], jnp.arange(20)[None], None)
        log_probs = jax.nn.log_softmax(policy.logits(params, hidden[0]))
        losses += [-log_probs[t - 1, tokens[t]] for t in range(1, len(mask)) if mask[t]]
    return jnp.mean(jnp.stack(losses))


def test_sorting_and_cutting_change_no_gradient(model, batch):
    policy, params = model
    gradient, stats = jax.jit(
        lambda params: warm_start.batch_gradient(
            policy, params, batch, microbatch_episodes=2
        )
    )(params)
    loss, expected = jax.value_and_grad(lambda p: plain_loss(policy, p, batch))(params)
    np.testing.assert_allclose(stats["loss"], loss, rtol=1e-5)
    assert int(stats["tokens"]) == int(batch.loss_mask[:, 1:].sum())
    chex.assert_trees_all_close(gradient, expected, atol=1e-6)


def test_what_the_template_says_is_not_learned(model, batch):
    policy, params = model
    silent = batch.replace(loss_mask=jnp.zeros_like(batch.loss_mask))
    gradient, stats = warm_start.batch_gradient(
        policy, params, silent, microbatch_episodes=8
    )
    assert float(stats["loss"]) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def test_episodes_must_split_evenly(model, batch):
    policy, params = model
    with pytest.raises(ValueError, match="microbatch_episodes = 3; change either"):
        warm_start.batch_gradient(policy, params, batch, microbatch_episodes=3)


def test_the_default_mixtures_are_distributions():
    for mixture in lessons.build_mixtures(
        pocket.get_config().demonstrators, redraw=0.1
    ):
        np.testing.assert_allclose(float(mixture.shares.sum()), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("share", 0.9, "share sum to"),
        ("noise", 1.5, "must lie between 0 and 1"),
        ("thought", "deep", "choose one of none, shallow, reading, misreading"),
    ],
)
def test_bad_mixtures_are_refused(key, value, message):
    demonstrators = pocket.get_config().demonstrators
    demonstrators.solver[key] = value
    with pytest.raises(ValueError, match=message):
        lessons.build_mixtures(demonstrators, redraw=0.1)


def test_bad_games_are_refused():
    section = pocket.get_config().games.frozen_lake.to_dict()
    with pytest.raises(ValueError, match=r"planning_params\.slip: frozen_lake has no"):
        lessons.build_game(**section | {"planning_params": {"slip": 1.0}})
    with pytest.raises(ValueError, match="use at least 1 or leave the game out"):
        lessons.build_game(**section | {"episodes": 0})


def tiny_config():
    config = pocket.get_config()
    for name in ("sokoban", "frozen_lake", "bandit_test"):
        del config.games[name]
    config.games.bandit.episodes = 4
    config.model.update(TINY)
    config.optimizer.warmup_steps = 1
    config.train.update(
        num_steps=4, microbatch_episodes=2, log_every=2, checkpoint_every=1
    )
    config.evaluation.num_prompts = 8
    return config


class Killed(Exception):
    """Stands for whatever ends a process."""


def test_a_run_writes_a_model_and_resumes_to_the_same_bits(tmp_path, monkeypatch):
    assert warm_start.warm_start(tiny_config(), tmp_path / "whole") == 0
    model, _ = load_checkpoint(tmp_path / "whole" / "model")
    tokenizer = load_tokenizer(tmp_path / "whole" / "model")
    assert model.vocab_size >= tokenizer.vocab_size
    assert tokenizer.stop_ids == (tokenizer.id_of("<|im_end|>"),)
    assert (tmp_path / "whole" / "scores.json").is_file()

    add = warm_start._Log.add

    def killed_at_three(self, stats, done, *, shows):
        if done == 3:
            raise Killed
        add(self, stats, done, shows=shows)

    with monkeypatch.context() as patch:
        patch.setattr(warm_start._Log, "add", killed_at_three)
        with pytest.raises(Killed):
            warm_start.warm_start(tiny_config(), tmp_path / "halves")
    assert warm_start.warm_start(tiny_config(), tmp_path / "halves") == 0
    whole, halves = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("whole", "halves")
    )
    assert whole == halves

    changed = tiny_config()
    changed.optimizer.learning_rate = 1.0
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate: 0\.002 -> 1\.0"):
        warm_start.warm_start(changed, tmp_path / "whole")


def test_impossible_schedules_are_refused(tmp_path):
    config = tiny_config()
    config.optimizer.warmup_steps = 4
    with pytest.raises(ValueError, match="warmup_steps = 4; it must be at least 0"):
        warm_start.warm_start(config, tmp_path)


def test_scores_tell_thinking_rows_from_the_others():
    trajectory = make_trajectory([0.0, 1.0, 1.0, 0.0])
    tokens = jnp.tile(jnp.array([[5, 6]], jnp.int32), (4, 1))
    starts = jnp.array([[0], [0], [1], [1]], jnp.int32)
    num_valid = jnp.array([[1], [0], [2], [2]], jnp.int32)
    turns = trajectory.turns.replace(
        reply_start=starts,
        num_valid=num_valid,
        num_executed=num_valid,
        has_format=jnp.array([[True], [True], [True], [False]]),
    )
    trajectory = trajectory.replace(
        tokens=tokens, turns=turns, success=jnp.array([False, True, True, True])
    )
    scores = thought_scores(trajectory, empty_thought=5)
    assert {k: float(v) for k, v in scores.items()} == {
        "success": 0.75,
        "thinking": 0.5,
        "success_thinking": 1.0,
        "success_not_thinking": 0.5,
        "bad_format": 0.5,
        "actions_per_turn": 1.25,
    }
