"""Runs of `launch.sft`: what they train, write, resume and refuse."""

import dataclasses
import json
import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.lora import build_lora_policy, read_lora
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import num_params
from ragen_jax.runs.checkpoint import Checkpointer
from ragen_jax.sft import train as sft
from ragen_jax.text.tokenizer import load_tokenizer
from tests import commands
from tests.sft import tiny
from tests.sft.faults import built, in_parts
from tests.sft.tiny import digests, record_of

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.slow
def test_a_new_model_resumes_to_the_same_bits(tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    program = sft.build_program(tiny.new_config(), whole / "tokenizer")
    with built(program):
        assert sft.train(tiny.new_config(), whole) == 0
    whole_lines = capsys.readouterr().out
    model, _ = load_checkpoint(whole / "model")
    tokenizer = load_tokenizer(whole / "model")
    assert model.vocab_size >= tokenizer.vocab_size
    assert tokenizer.stop_ids == (tokenizer.id_of("<|im_end|>"),)
    assert [r["iteration"] for r in record_of(whole)] == [1, 2, 3, 4, 5]
    assert not (whole / "trajectories").exists()
    scores = json.loads((whole / "scores.json").read_text())
    assert scores.keys() == {"evaluation", "after"}

    in_parts(tiny.new_config(), parts, program)
    lines = capsys.readouterr().out
    assert "stopped after step 2 of 5, saved" in lines
    assert "resuming after step 3" in lines
    assert digests(whole / "model") == digests(parts / "model")
    assert record_of(whole) == record_of(parts)
    # A mean over two steps, of which one was taken before the interruption.
    assert last_line(whole_lines, step=4) == last_line(lines, step=4)

    changed = tiny.new_config(optimizer__learning_rate=1.0)
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate: 0\.002 -> 1\.0"):
        sft.train(changed, whole)


def last_line(lines, step):
    return re.findall(rf"^ +{step}/5 +loss (\S+) +accuracy (\S+)", lines, re.M)[-1]


@pytest.fixture(scope="module")
def tuned(checkpoint, tmp_path_factory):
    """Program and run folder of a whole fine-tuning of adapters in bfloat16."""
    before, config = digests(checkpoint), tiny.tuning_config(checkpoint)
    workdir = tmp_path_factory.mktemp("runs") / "tuned"
    program = sft.build_program(config, workdir / "tokenizer")
    with built(program):
        assert sft.train(config, workdir) == 0
    assert digests(checkpoint) == before
    return program, workdir


def restored(program, workdir):
    checkpointer = Checkpointer(workdir, keep=None)
    state = checkpointer.restore(
        checkpointer.latest, program.init(), program.model.identity
    )
    checkpointer.close()
    return state


@pytest.mark.slow
def test_the_loss_falls(tuned):
    losses = [record["loss"] for record in record_of(tuned[1])]
    assert len(losses) == 6
    # A uniform guess among 640 tokens has a loss of 6.5.
    assert losses[0] > 4
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_the_model_keeps_its_tokenizer(tuned, checkpoint):
    model = tuned[1] / "model"
    ours, theirs = digests(model), digests(checkpoint)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert ours[name] == theirs[name]
    assert load_tokenizer(model).stop_ids == load_tokenizer(checkpoint).stop_ids
    assert len(load_tokenizer(model).stop_ids) == 2


@pytest.mark.slow
def test_scores_before_and_after_are_kept(tuned, checkpoint):
    program, workdir = tuned
    text = (workdir / "scores.json").read_text()
    scores = json.loads(text)
    assert scores["evaluation"]["num_prompts"] == 4
    for when in ("before", "after"):
        values = scores[when]["bandit"]
        assert values["success_low"] <= values["success"] <= values["success_high"]
    # A random model ends no reply in eight tokens.
    assert scores["before"]["bandit"]["bad_format"] == 1
    # Scores from before training are not measured again.
    calls = []

    def score(params):
        calls.append(params)
        return {"bandit": dict.fromkeys(scores["after"]["bandit"], math.nan)}

    with built(dataclasses.replace(program, score=score)):
        assert sft.train(tiny.tuning_config(checkpoint), workdir) == 0
    assert len(calls) == 1
    written = json.loads((workdir / "scores.json").read_text())
    assert written["before"] == scores["before"]
    assert set(written["after"]["bandit"].values()) == {None}
    (workdir / "scores.json").write_text(text)


@pytest.mark.slow
def test_only_adapters_are_trained_and_have_moments(tuned, checkpoint):
    program, workdir = tuned
    state = restored(program, workdir)
    names = {path[-2].key for path, _ in jax.tree.leaves_with_path(state.params)}
    assert names == set(ADAPTED)
    _, base = load_checkpoint(checkpoint)
    num_adapters = num_params(state.params)
    assert num_adapters < num_params(base) / 2
    moments = [x for x in jax.tree.leaves(state.policy.opt_state) if x.ndim]
    assert sum(x.size for x in moments) == 2 * num_adapters
    assert {x.dtype.name for x in jax.tree.leaves(state.params)} == {"float32"}
    # The frozen weights are held in the computation's dtype.
    kernel = program.model.frozen["layers"]["0"]["mlp"]["up_proj"]["kernel"]
    assert kernel.dtype == jnp.bfloat16


@pytest.mark.slow
def test_the_written_model_speaks_like_the_trained_one(tuned, checkpoint):
    """In float32, where merging costs one rounding."""
    program, workdir = tuned
    state = restored(program, workdir)
    model, base = load_checkpoint(checkpoint)
    written_model, written = load_checkpoint(workdir / "model")
    assert written_model == model
    tokens = jax.random.randint(jax.random.key(0), (2, 40), 0, 600)
    positions = jnp.tile(jnp.arange(40)[None], (2, 1))

    def logits(policy, params):
        hidden, _ = policy.forward(params, tokens, positions, None)
        return policy.logits(params, hidden)

    lora = read_lora(**tiny.tuning_config(checkpoint).lora)
    adapted = build_lora_policy(model, lora=lora)
    trained = logits(adapted, {"base": base, "adapters": state.params})
    plain = build_policy(model)
    np.testing.assert_allclose(logits(plain, written), trained, atol=2e-4)
    assert float(jnp.abs(trained - logits(plain, base)).max()) > 1


@pytest.mark.slow
def test_fine_tuning_in_parts_is_the_whole_run(tuned, checkpoint, tmp_path):
    program, workdir = tuned
    parts = tmp_path / "parts"
    with built(program):
        in_parts(tiny.tuning_config(checkpoint), parts, program)
    assert digests(parts / "model") == digests(workdir / "model")
    assert record_of(parts) == record_of(workdir)
    scores = [(f / "scores.json").read_text() for f in (parts, workdir)]
    assert json.loads(scores[0]) == json.loads(scores[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lora__alpha", 8.0, "lora.alpha: 32.0 -> 8.0"),
        ("train__num_epochs", 5, "train.num_epochs: 4 -> 5"),
        (
            "games__bandit__num_demonstrations",
            7,
            "num_demonstrations: 6 -> 7",
        ),
    ],
)
def test_a_changed_key_is_refused(tuned, checkpoint, key, value, message):
    program, workdir = tuned
    config = tiny.tuning_config(checkpoint, **{key: value})
    with built(program), pytest.raises(ValueError, match=re.escape(message)):
        sft.train(config, workdir)


@pytest.mark.slow
def test_without_adapters_all_of_it_is_trained(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(sft, "_score", lambda *_: None)
    config = tiny.tuning_config(
        checkpoint,
        lora__rank=None,
        model__dtype="float32",
        train__num_epochs=None,
        train__num_steps=2,
    )
    program = sft.build_program(config, tmp_path / "tokenizer")
    with built(program):
        assert sft.train(config, tmp_path) == 0
    state = restored(program, tmp_path)
    _, base = load_checkpoint(checkpoint)
    _, written = load_checkpoint(tmp_path / "model")
    chex.assert_trees_all_equal(jax.device_get(state.params), written)
    for before, after in zip(
        jax.tree.leaves(base), jax.tree.leaves(written), strict=True
    ):
        assert (before != after).any()


@pytest.mark.slow
def test_a_model_that_can_read_learns_to_play(tmp_path):
    """The real command, with adapters: ten steps of 32 of Sokoban's demonstrations.

    On these 64 levels the pocket model wins 25 %, and then 61 %; were it 55 % in
    truth, it would win less than 35 % in one of a thousand runs.
    """
    keys = {
        "demonstrators.solver.thought": "reading",
        "lora.rank": 16,
        "games.sokoban.episodes": 32,
        "games.sokoban.num_demonstrations": 160,
        "train.num_epochs": 2,
        "evaluation.num_prompts": 64,
    }
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    words = ["--config=configs/sft.py:pocket", f"--workdir={tmp_path}", *flags]
    command = commands.command("sft", *words)
    done = commands.run(command, timeout=550)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    before, after = (scores[when]["sokoban"]["success"] for when in ("before", "after"))
    assert after > before + 0.1
    assert len(record_of(tmp_path)) == 10
