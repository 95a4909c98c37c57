"""The supervised warm start: its gradient, its settings, its run folder."""

import os
import re
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import pocket, sokoban
from ragen_jax.models.families import new_config
from ragen_jax.models.hf_weights import load_checkpoint
from ragen_jax.models.policy import build_policy
from ragen_jax.program import POCKET
from ragen_jax.runs import writer
from ragen_jax.sft import data as lessons
from ragen_jax.sft import step as imitation
from ragen_jax.sft import train as warm_start
from ragen_jax.sft.data import Batch
from ragen_jax.sft.evaluate import make_score, thought_scores
from ragen_jax.sft.log import LessonLog
from ragen_jax.sft.rules import validate_warm_start
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
    config = new_config(
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


@pytest.mark.parametrize("chunk_tokens", [None, 1, 7, 1000])
def test_sorting_and_cutting_change_no_gradient(model, batch, chunk_tokens):
    policy, params = model
    gradient, stats = jax.jit(
        lambda params: imitation.batch_gradient(
            policy,
            lambda params: params,
            params,
            batch,
            microbatch_episodes=2,
            logprob_chunk_tokens=chunk_tokens,
        )
    )(params)
    loss, expected = jax.value_and_grad(lambda p: plain_loss(policy, p, batch))(params)
    np.testing.assert_allclose(stats["loss"], loss, rtol=1e-5)
    assert int(stats["tokens"]) == int(batch.loss_mask[:, 1:].sum())
    chex.assert_trees_all_close(gradient, expected, atol=1e-6)


def test_what_the_template_says_is_not_learned(model, batch):
    policy, params = model
    silent = batch.replace(loss_mask=jnp.zeros_like(batch.loss_mask))
    gradient, stats = imitation.batch_gradient(
        policy,
        lambda params: params,
        params,
        silent,
        microbatch_episodes=8,
        logprob_chunk_tokens=None,
    )
    assert float(stats["loss"]) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


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
    for key in ("params", "planning_params"):
        message = f"{key} of frozen_lake: 'slip' is no parameter; there are "
        with pytest.raises(ValueError, match=message):
            lessons.build_game(**section | {key: {"slip": 1.0}})
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
        num_steps=5, microbatch_episodes=2, log_every=2, checkpoint_every=3
    )
    config.evaluation.num_prompts = 8
    return config


class Killed(Exception):
    """Stands for whatever ends a process."""


def interrupt(monkeypatch, at, action):
    """Do something in the middle of a step."""
    add = LessonLog.add

    def interrupted(self, done, stats):
        add(self, done, stats)
        if done == at:
            action()

    monkeypatch.setattr(LessonLog, "add", interrupted)


def die():
    raise Killed


def record_of(workdir):
    return [{**r, "time": None} for r in writer.read_metrics(workdir)]


def test_a_run_writes_a_model_and_resumes_to_the_same_bits(
    tmp_path, monkeypatch, capsys
):
    assert warm_start.warm_start(tiny_config(), tmp_path / "whole") == 0
    whole_lines = capsys.readouterr().out
    model, _ = load_checkpoint(tmp_path / "whole" / "model")
    tokenizer = load_tokenizer(tmp_path / "whole" / "model")
    assert model.vocab_size >= tokenizer.vocab_size
    assert tokenizer.stop_ids == (tokenizer.id_of("<|im_end|>"),)
    assert (tmp_path / "whole" / "scores.json").is_file()

    with monkeypatch.context() as patch:
        interrupt(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert warm_start.warm_start(tiny_config(), tmp_path / "parts") == 143
    assert "stopped after step 2 of 5, saved" in capsys.readouterr().out
    assert not (tmp_path / "parts" / "model").exists()
    with monkeypatch.context() as patch:
        interrupt(patch, 5, die)
        with pytest.raises(Killed):
            warm_start.warm_start(tiny_config(), tmp_path / "parts")
    capsys.readouterr()
    assert warm_start.warm_start(tiny_config(), tmp_path / "parts") == 0
    resumed_lines = capsys.readouterr().out
    assert "resuming after step 3" in resumed_lines
    whole, parts = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("whole", "parts")
    )
    assert whole == parts
    assert record_of(tmp_path / "whole") == record_of(tmp_path / "parts")
    assert [r["iteration"] for r in record_of(tmp_path / "whole")] == [1, 2, 3, 4, 5]
    # Averages over steps of which one was taken before the interruption.
    assert shown(whole_lines, step=4) == shown(resumed_lines, step=4)
    assert not (tmp_path / "whole" / "trajectories").exists()

    changed = tiny_config()
    changed.optimizer.learning_rate = 1.0
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate: 0\.002 -> 1\.0"):
        warm_start.warm_start(changed, tmp_path / "whole")


def shown(lines, step):
    """Loss and accuracy on the line of a step."""
    (line,) = re.findall(rf"^ +{step}/5 +loss (\S+) +accuracy (\S+)", lines, re.M)
    return line


BAD = {
    "optimizer.warmup_steps": (5, "it must be below the number of steps, 5"),
    "train.num_steps": (0, "train.num_steps = 0; it must be at least 1"),
    "train.log_every": (0, "train.log_every = 0; it must be at least 1"),
    "train.checkpoint_every": (0, "train.checkpoint_every = 0"),
    "train.microbatch_episodes": (3, "4 episodes per step"),
    "seed": (None, "seed is None"),
    "mixture.redraw": (1.5, "mixture.redraw = 1.5; it must be between 0 and 1"),
    "mixture.discount": (0.0, "mixture.discount = 0.0; it must be above 0"),
    "games.bandit.max_turns": (0, "games.bandit.max_turns = 0"),
    "games.bandit.noise": (2.0, "noise of game bandit = 2.0"),
    "demonstrators.solver.share": (-0.25, "demonstrators.solver.share = -0.25"),
    "model.num_attention_heads": (3, "not a multiple of model.num_attention_heads"),
    "model.max_position_embeddings": (9, "max_position_embeddings = 9; raise it"),
    "max_reply_tokens": (3, "max_reply_tokens = 3; raise it"),
    "evaluation.temperature": (-1.0, "evaluation.temperature = -1.0"),
}


@pytest.mark.parametrize("key", BAD)
def test_bad_settings_are_refused_before_anything_is_written(key, tmp_path):
    value, message = BAD[key]
    config = tiny_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=re.escape(message)):
        warm_start.warm_start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_shipped_configuration_is_valid_and_a_task_s_is_refused():
    validate_warm_start(pocket.get_config())
    with pytest.raises(ValueError, match=r"lacks games; use configs/pocket\.py"):
        validate_warm_start(sokoban.get_config())


def test_a_greedy_player_can_be_scored():
    """Temperature 0 is greedy, as everywhere."""
    games = {"bandit": lessons.build_game(**tiny_config().games.bandit)}
    tokenizer = load_tokenizer(POCKET)
    prompt = pocket.get_config().prompt
    shape = new_config(vocab_size=384, head_dim=8, tie_word_embeddings=True, **TINY)
    policy = build_policy(shape)
    score = make_score(
        policy,
        games,
        lessons.build_dialogues(games, tokenizer, prompt, 16),
        tokenizer,
        max_reply_tokens=16,
        num_prompts=2,
        temperature=0.0,
        seed=0,
    )
    scores = score(policy.init(jax.random.key(0)))
    assert 0 <= scores["bandit"]["success"] <= 1


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
    scores = thought_scores(trajectory, empty_thought=5, thinking=True)
    assert {k: float(v) for k, v in scores.items()} == {
        "success": 0.75,
        "thinking": 0.5,
        "success_thinking": 1.0,
        "success_not_thinking": 0.5,
        "bad_format": 0.5,
        "actions_per_turn": 1.25,
    }
