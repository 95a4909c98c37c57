"""Supervised warm start: teach a small model to play like a mixture of demonstrators.

In: a configuration and a run folder. Out: `<workdir>/model`, a checkpoint in Hugging
Face layout with its own tokenizer, and `<workdir>/scores.json`. Every step plays fresh
episodes on the device, through exactly the dialogue of the rollouts, and learns the
replies, the end-of-turn token included; what the template says is never in the loss.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key
from ml_collections import ConfigDict
from rich.console import Console

from ragen_jax import lessons, rngs, writer
from ragen_jax.checkpoint import Checkpointer, identity
from ragen_jax.config import changed_keys, from_json, to_json
from ragen_jax.demonstrations import Mixture
from ragen_jax.imitation import make_step
from ragen_jax.learner.state import Network, TrainState
from ragen_jax.lesson_scores import score_games
from ragen_jax.lessons import Game
from ragen_jax.models.hf_weights import save_checkpoint
from ragen_jax.models.qwen2 import Policy, build_policy
from ragen_jax.models.qwen2_config import Qwen2Config
from ragen_jax.run import StopRequest
from ragen_jax.text import chat, pocket_tokenizer
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.warm_start_config import validate_warm_start

# The embedding is padded to a multiple of this, so that it splits over devices.
VOCABULARY_MULTIPLE = 64


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


def init_state(
    policy: Policy, optimizer: optax.GradientTransformation, key: Key[Array, ""]
) -> TrainState:
    """A fresh model."""

    @jax.jit
    def create(key):
        params = policy.init(key)
        zero = jnp.zeros((), jnp.int32)
        network = Network(params, optimizer.init(params))
        no_kl = jnp.zeros((), jnp.float32)
        return TrainState(network, None, no_kl, zero, zero, zero, zero)

    return create(key)


@dataclasses.dataclass(frozen=True)
class _Course:
    """What the configuration describes, built."""

    games: dict[str, Game]
    tokenizer: Tokenizer
    dialogues: dict[str, Dialogue]
    model: Qwen2Config
    policy: Policy
    optimizer: optax.GradientTransformation
    mixtures: tuple[Mixture, Mixture]
    step: Callable[..., tuple[TrainState, dict[str, Array]]]


def _run(config: ConfigDict, workdir: pathlib.Path, course: _Course) -> int:
    """The whole warm start, in a folder that is locked."""
    say = Console(highlight=False, soft_wrap=True).print
    _refuse_changes(workdir, config)
    writer.write_text_atomically(workdir / "config.json", to_json(config))
    lessons.keep_tokenizer(course.tokenizer, workdir / "tokenizer")
    with StopRequest() as stop:
        state = _train(config, workdir, course, stop, say)
    if stop.requested:
        num_steps = config.train.num_steps
        say(f"stopped after step {int(state.iteration)} of {num_steps}, saved")
        return stop.exit_status
    folder = workdir / "model"
    save_checkpoint(folder, course.model, state.params, workdir / "tokenizer")
    scores = score_games(
        course.policy,
        state.params,
        course.games,
        course.dialogues,
        course.tokenizer,
        max_reply_tokens=config.max_reply_tokens,
        **config.evaluation,
    )
    text = json.dumps(scores, indent=2) + "\n"
    writer.write_text_atomically(workdir / "scores.json", text)
    for name, values in scores.items():
        say(f"{name:12s} " + "  ".join(f"{k} {v:.3f}" for k, v in values.items()))
    say(f"the model is in {folder}, its scores in {workdir / 'scores.json'}")
    return 0


def _build_course(config: ConfigDict, tokenizer_folder: pathlib.Path) -> _Course:
    """Everything the warm start needs, nothing of it written yet.

    Raises:
      ValueError: a value does not fit a game, the tokenizer or another value.
    """
    games = {n: lessons.build_game(**section) for n, section in config.games.items()}
    mixtures = lessons.build_mixtures(
        config.demonstrators, redraw=config.mixture.redraw
    )
    tokenizer = lessons.load_or_build_tokenizer(tokenizer_folder, games, config.prompt)
    model = _model_config(tokenizer, **config.model)
    policy = build_policy(model)
    optimizer = _build_optimizer(config.train.num_steps, **config.optimizer)
    demonstrate = lessons.make_demonstrate(
        games,
        tokenizer,
        tokenization=config.prompt.tokenization,
        max_reply_tokens=config.max_reply_tokens,
        discount=config.mixture.discount,
        thinking=config.prompt.thinking,
    )
    dialogues = lessons.build_dialogues(
        games, tokenizer, config.prompt, config.max_reply_tokens
    )
    _check_context(dialogues, model)
    step = make_step(
        policy,
        optimizer,
        demonstrate,
        microbatch_episodes=config.train.microbatch_episodes,
    )
    # Traced now, because some values only the demonstrators can refuse.
    key = rngs.root_key(config.seed)
    state = jax.eval_shape(functools.partial(init_state, policy, optimizer), key)
    jax.eval_shape(step, state, key, mixtures[0], dialogues)
    return _Course(
        games=games,
        tokenizer=tokenizer,
        dialogues=dialogues,
        model=model,
        policy=policy,
        optimizer=optimizer,
        mixtures=mixtures,
        step=step,
    )


def _train(
    config: ConfigDict,
    workdir: pathlib.Path,
    course: _Course,
    stop: StopRequest,
    say: Callable[[str], None],
) -> TrainState:
    """All steps that are not done yet, or up to a stop; a checkpoint now and then."""
    train, root = config.train, rngs.root_key(config.seed)
    owner = identity(course.model, load_tokenizer(workdir / "tokenizer"))
    state = init_state(course.policy, course.optimizer, rngs.stream(root, "init"))
    say(
        f"{sum(x.size for x in jax.tree.leaves(state.params)):,} parameters, "
        f"{course.tokenizer.vocab_size} tokens, games {', '.join(course.games)}"
    )
    checkpointer = Checkpointer(workdir, keep=1)
    start = checkpointer.latest or 0
    if start:
        state = checkpointer.restore(start, state, owner)
        say(f"resuming after step {start}")
    log = _Log(
        workdir, start=start, total=train.num_steps, every=train.log_every, say=say
    )
    first_steps = config.mixture.first_part * train.num_steps
    for done in range(start + 1, train.num_steps + 1):
        mixture = course.mixtures[done > first_steps]
        key = rngs.step_key(root, done)
        state, stats = course.step(state, key, mixture, course.dialogues)
        log.add(done, stats)
        is_last = done == train.num_steps or stop.requested
        if done % train.checkpoint_every == 0 or is_last:
            log.sync()
            checkpointer.save(done, state, owner)
        if is_last:
            break
    checkpointer.close()
    log.close()
    return state


def _model_config(tokenizer: Tokenizer, **sizes) -> Qwen2Config:
    vocabulary = -(-tokenizer.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return Qwen2Config(
        vocab_size=vocabulary,
        head_dim=sizes["hidden_size"] // sizes["num_attention_heads"],
        tie_word_embeddings=True,
        eos_token_ids=(tokenizer.id_of(chat.END),),
        pad_token_id=tokenizer.id_of(pocket_tokenizer.END_OF_TEXT),
        **sizes,
    )


def _check_context(dialogues: Mapping[str, Dialogue], model: Qwen2Config) -> None:
    for name, dialogue in dialogues.items():
        if dialogue.max_trajectory_tokens > model.max_position_embeddings:
            raise ValueError(
                f"an episode of {name} may need {dialogue.max_trajectory_tokens} "
                "tokens, more than model.max_position_embeddings = "
                f"{model.max_position_embeddings}; raise it or lower max_reply_tokens"
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
    changes = changed_keys(from_json(path.read_text()), config)
    if changes:
        listed = "; ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in changes.items())
        raise ValueError(
            f"{workdir} holds a warm start with other settings ({listed}); use "
            "those settings to resume it, or another --workdir"
        )


class _Log:
    """Every step to metrics.jsonl, averages since the last line to the console.

    Steps are fetched from the device a few at a time, so that it never waits for us.
    """

    def __init__(
        self, workdir: pathlib.Path, *, start: int, total: int, every: int, say
    ):
        self._writer = writer.RunWriter(workdir, after=start, tensorboard=False)
        self._start, self._total, self._every, self._say = start, total, every, say
        self._began = time.monotonic()
        self._on_device: dict[int, Mapping[str, Array]] = {}
        # What an interrupted run had not averaged yet is in the record; null is NaN.
        shown = start - start % every
        self._unshown: list[Mapping[str, float]] = [
            {k: math.nan if v is None else v for k, v in record.items()}
            for record in writer.read_metrics(workdir)
            if record["iteration"] > shown
        ]

    def add(self, done: int, stats: Mapping[str, Array]) -> None:
        """Take the stats of step `done`; show a line when one is due."""
        self._on_device[done] = stats
        if done % self._every == 0 or done == self._total:
            self._fetch()
            self._show(done, stats)

    def sync(self) -> None:
        """Make the record durable; called before a checkpoint that relies on it."""
        self._fetch()
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()

    def _fetch(self) -> None:
        for step, stats in jax.device_get(self._on_device).items():
            self._writer.scalars(step, stats)
            self._unshown.append(stats)
        self._on_device = {}

    def _show(self, done: int, names) -> None:
        rows, self._unshown = self._unshown, []
        means = {k: sum(row[k] for row in rows) / len(rows) for k in names}
        seconds = time.monotonic() - self._began
        left = round(seconds / (done - self._start) * (self._total - done))
        players = "  ".join(
            f"{k.removeprefix('demonstrated/')} {v:.0%}"
            for k, v in means.items()
            if k.startswith("demonstrated/")
        )
        self._say(
            f"{done:5d}/{self._total}  loss {means['loss']:.3f}  accuracy "
            f"{means['accuracy']:.1%}  demonstrators: {players}  {seconds:.0f}s, "
            f"{left // 60}m{left % 60:02d}s left"
        )
