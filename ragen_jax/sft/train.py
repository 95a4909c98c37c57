"""Supervised warm start: teach a model to play like demonstrators.

In: a configuration and a run folder. Out: `<workdir>/model`, a checkpoint in Hugging
Face layout with its tokenizer, and `<workdir>/scores.json`. Every step plays episodes
on the device, through exactly the dialogue of the rollouts, and learns the replies, the
end-of-turn token included; what the template says is never in the loss.

A small model made from nothing learns from ever fresh episodes of a mixture of
demonstrators (`configs/pocket.py`); a loaded checkpoint is fine-tuned, wholly or in
adapters, on a data set of solved episodes (`configs/sft.py`). The two differ in where
model and tokenizer come from (`students.py`), what of it learns, and which episodes a
step draws (`lesson_plan.py`).
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from ml_collections import ConfigDict
from rich.console import Console

from ragen_jax import rngs
from ragen_jax.config import changed_keys, from_json, to_json
from ragen_jax.learner.state import Network, TrainState
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.hf_files import identity
from ragen_jax.models.hf_weights import save_checkpoint
from ragen_jax.program import num_params
from ragen_jax.rollout.demonstrators import Mixture
from ragen_jax.runs import writer
from ragen_jax.runs.checkpoint import Checkpointer
from ragen_jax.runs.run import StopRequest
from ragen_jax.sft import data as lessons
from ragen_jax.sft.data import Draw, Game
from ragen_jax.sft.evaluate import make_score
from ragen_jax.sft.log import LessonLog
from ragen_jax.sft.model import Student, build_student
from ragen_jax.sft.rules import num_steps, validate_warm_start
from ragen_jax.sft.sampler import make_draw
from ragen_jax.sft.step import make_step
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import Params

# Keys that a resumed warm start may change: they do not touch what is learned.
FREE_ON_RESUME = (
    "evaluation.",
    "model.attention",
    "train.microbatch_episodes",
    "train.logprob_chunk_tokens",
    "train.log_every",
    "train.checkpoint_every",
)


def warm_start(config: ConfigDict, workdir: pathlib.Path) -> int:
    """Train on demonstrations, write the model and its scores; resumes.

    Returns:
      Exit status: 0 when done, 143 (or 130) when a signal asked to stop and the state
      was saved.

    Raises:
      ValueError: the configuration or the run folder does not allow it.
    """
    validate_warm_start(config)
    course = _build_course(config, workdir / "tokenizer")
    lock = writer.open_workdir(workdir)
    try:
        return _run(config, workdir, course)
    finally:
        os.close(lock)


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """A state before the first step; the parameters that are trained are copied."""

    @functools.partial(jax.jit, donate_argnums=0)
    def create(params):
        zero = jnp.zeros((), jnp.int32)
        network = Network(params, optimizer.init(params))
        no_kl = jnp.zeros((), jnp.float32)
        return TrainState(network, None, no_kl, zero, zero, zero, zero)

    return create(jax.tree.map(jnp.array, params))


@dataclasses.dataclass(frozen=True)
class _Course:
    """What the configuration describes, built.

    Attributes:
      games, student: what is played, and who learns it.
      optimizer, mixtures: how, and from whom: at first, then.
      dialogues: of the demonstrations.
      draw: step -> its episodes.
      step: see `make_step`.
      score: parameters of the student's policy -> how it plays.
    """

    games: dict[str, Game]
    student: Student
    optimizer: optax.GradientTransformation
    mixtures: tuple[Mixture, Mixture]
    dialogues: dict[str, Dialogue]
    draw: Callable[[int], dict[str, Draw]]
    step: Callable[..., tuple[TrainState, dict[str, Array]]]
    score: Callable[[Params], dict[str, dict[str, float]]]


def _run(config: ConfigDict, workdir: pathlib.Path, course: _Course) -> int:
    """The whole warm start, in a folder that is locked."""
    say = Console(highlight=False, soft_wrap=True).print
    student = course.student
    _refuse_changes(workdir, config)
    writer.write_text_atomically(workdir / "config.json", to_json(config))
    if student.is_new:
        lessons.keep_tokenizer(student.tokenizer, student.tokenizer_folder)
    with StopRequest() as stop:
        state = _train(config, workdir, course, stop, say)
    if stop.requested:
        done, total = int(state.iteration), num_steps(config)
        say(f"stopped after step {done} of {total}, saved")
        return stop.exit_status
    folder = workdir / "model"
    params = student.finish(state.params)
    save_checkpoint(folder, student.model, params, student.tokenizer_folder)
    _examine(config, workdir, course, params, when="after", say=say)
    say(f"the model is in {folder}, its scores in {workdir / 'scores.json'}")
    return 0


def _build_course(config: ConfigDict, new_tokenizer: pathlib.Path) -> _Course:
    """Everything the warm start needs, nothing of it written yet.

    Raises:
      ValueError: a value does not fit a game, the model or another value.
    """
    thoughts = {spec.thought for spec in config.demonstrators.values()}
    mixtures = lessons.build_mixtures(
        config.demonstrators, redraw=config.mixture.redraw
    )
    games = {
        name: lessons.build_game(**section, thoughts=thoughts)
        for name, section in config.games.items()
    }
    student = build_student(config, games, new_tokenizer)
    dialogues, played = (
        lessons.build_dialogues(games, student.tokenizer, config.prompt, length)
        for length in (config.max_reply_tokens, config.evaluation.max_reply_tokens)
    )
    _check_context(dialogues, student.model, "max_reply_tokens")
    _check_context(played, student.model, "evaluation.max_reply_tokens")
    demonstrate = lessons.make_demonstrate(
        games,
        student.tokenizer,
        tokenization=config.prompt.tokenization,
        max_reply_tokens=config.max_reply_tokens,
        discount=config.mixture.discount,
        thinking=config.prompt.thinking,
    )
    optimizer = _build_optimizer(num_steps(config), **config.optimizer)
    root, train = rngs.root_key(config.seed), config.train
    course = _Course(
        games=games,
        student=student,
        optimizer=optimizer,
        mixtures=mixtures,
        dialogues=dialogues,
        draw=make_draw(games, root, num_epochs=train.num_epochs),
        step=make_step(
            student.trainable,
            optimizer,
            demonstrate,
            microbatch_episodes=train.microbatch_episodes,
            logprob_chunk_tokens=train.logprob_chunk_tokens,
        ),
        score=make_score(
            student.policy, games, played, student.tokenizer, **config.evaluation
        ),
    )
    _trace(course, root)
    return course


def _trace(course: _Course, root) -> None:
    """Traces a step now, because some values only the demonstrators can refuse."""
    student = course.student
    trained = jax.eval_shape(student.begin, root)
    state = jax.eval_shape(lambda p: init_state(p, course.optimizer), trained)
    draws = jax.eval_shape(course.draw, 1)
    jax.eval_shape(
        course.step, student.frozen, state, draws, course.mixtures[0], course.dialogues
    )


def _train(
    config: ConfigDict,
    workdir: pathlib.Path,
    course: _Course,
    stop: StopRequest,
    say: Callable[[str], None],
) -> TrainState:
    """All steps that are not done yet, or up to a stop; a checkpoint now and then."""
    train, total, student = config.train, num_steps(config), course.student
    tokenizer = load_tokenizer(student.tokenizer_folder)
    owner = identity(
        student.model, tokenizer.folder, tokenizer.stop_ids, student.frozen_digest
    )
    key = rngs.stream(rngs.root_key(config.seed), "init")
    state = init_state(student.begin(key), course.optimizer)
    size = f"{num_params(state.params):,}"
    if student.frozen is not None:
        size += f" over {num_params(student.frozen):,} frozen"
    say(
        f"{size} parameters, "
        f"{student.tokenizer.vocab_size} tokens, games {', '.join(course.games)}"
    )
    if not student.is_new:
        params = student.trainable.play_params(student.frozen, state.params)
        _examine(config, workdir, course, params, when="before", say=say)
        del params  # as large as the model
    checkpointer = Checkpointer(workdir, keep=1)
    start = checkpointer.latest or 0
    if start:
        state = checkpointer.restore(start, state, owner)
        say(f"resuming after step {start}")
    log = LessonLog(workdir, start=start, total=total, every=train.log_every, say=say)
    for done in range(start + 1, total + 1):
        mixture = course.mixtures[done > config.mixture.first_part * total]
        state, stats = course.step(
            student.frozen, state, course.draw(done), mixture, course.dialogues
        )
        log.add(done, stats)
        is_last = done == total or stop.requested
        if done % train.checkpoint_every == 0 or is_last:
            log.sync()
            checkpointer.save(done, state, owner)
        if is_last:
            break
    checkpointer.close()
    log.close()
    return state


def _examine(
    config: ConfigDict,
    workdir: pathlib.Path,
    course: _Course,
    params: Params,
    *,
    when: str,
    say: Callable[[str], None],
) -> None:
    """Let the student play; the scores go to `scores.json` under `when`.

    What it scored before is measured once, unless the way of measuring has changed.
    """
    path, settings = workdir / "scores.json", config.evaluation.to_dict()
    known = json.loads(path.read_text()) if path.exists() else {}
    if known.get("evaluation") != settings:
        known = {"evaluation": settings}
    if when == "before" and when in known:
        return
    scores = course.score(params)
    # JSON has no NaN.
    known[when] = {
        name: {k: v if math.isfinite(v) else None for k, v in values.items()}
        for name, values in scores.items()
    }
    writer.write_text_atomically(path, json.dumps(known, indent=2) + "\n")
    for name, values in scores.items():
        shown = "  ".join(f"{k} {v:.3f}" for k, v in values.items())
        say(f"{when:6s} {name:12s} {shown}")


def _check_context(
    dialogues: Mapping[str, Dialogue], model: ModelConfig, limit: str
) -> None:
    for name, dialogue in dialogues.items():
        if dialogue.max_trajectory_tokens > model.max_position_embeddings:
            raise ValueError(
                f"an episode of {name} may need {dialogue.max_trajectory_tokens} "
                "tokens, more than model.max_position_embeddings = "
                f"{model.max_position_embeddings}; raise it (or take a model that "
                f"reads more), or lower {limit} or games.{name}.max_turns"
            )


def _build_optimizer(
    num_steps: int,
    *,
    learning_rate: float,
    warmup_steps: int,
    final_fraction: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    max_grad_norm: float,
) -> optax.GradientTransformation:
    """Clipping, AdamW, linear warm-up, cosine decay."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, warmup_steps, num_steps, learning_rate * final_fraction
    )
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(schedule, b1=beta1, b2=beta2, weight_decay=weight_decay),
    )


def _refuse_changes(workdir: pathlib.Path, config: ConfigDict) -> None:
    """A run folder belongs to one configuration.

    Raises:
      ValueError: what is there was made with other settings.
    """
    path = workdir / "config.json"
    if not path.exists():
        return
    old = from_json(path.read_text())
    changes = changed_keys(old, config, FREE_ON_RESUME)
    if changes:
        listed = "; ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in changes.items())
        raise ValueError(
            f"{workdir} holds a warm start with other settings ({listed}); use "
            "those settings to resume it, or another --workdir"
        )
