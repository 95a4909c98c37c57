"""Supervised warm start: teach a small model to play like a mixture of demonstrators.

In: a configuration and a run folder. Out: `<workdir>/model`, a checkpoint in Hugging
Face layout with its own tokenizer, and `<workdir>/scores.json`. Every step plays fresh
episodes on the device, through exactly the dialogue of the rollouts, and learns the
replies, the end-of-turn token included; what the template says is never in the loss.
"""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key
from ml_collections import ConfigDict
from rich.console import Console

from ragen_jax import lessons, rngs, writer
from ragen_jax.checkpoint import Checkpointer, abstract_state
from ragen_jax.config import changed_keys, from_json, to_json
from ragen_jax.demonstrations import Mixture
from ragen_jax.learner.state import TrainState
from ragen_jax.lesson_scores import score_games
from ragen_jax.lessons import Batch, Game
from ragen_jax.models.hf_weights import save_checkpoint
from ragen_jax.models.qwen2 import Policy, build_policy
from ragen_jax.models.qwen2_config import Qwen2Config
from ragen_jax.text import chat, pocket_tokenizer
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Params

# The embedding is padded to a multiple of this, so that it splits over devices.
VOCABULARY_MULTIPLE = 64
# A microbatch is computed at the shortest of this many lengths that holds it.
NUM_WIDTHS = 5


def warm_start(config: ConfigDict, workdir: pathlib.Path) -> int:
    """Train on demonstrations, write the model and its scores; resumes.

    Returns:
      Exit status, 0.

    Raises:
      ValueError: the configuration or the run folder does not allow it.
    """
    lock = writer.open_workdir(workdir)
    try:
        _run(config, workdir)
    finally:
        os.close(lock)
    return 0


def make_step(
    policy: Policy,
    optimizer: optax.GradientTransformation,
    demonstrate: Callable,
    *,
    microbatch_episodes: int,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """Compiles `step(state, key, mixture, dialogues) -> (state, stats)`.

    The state is donated. `stats`: `loss` in nats per reply token, `accuracy` of the
    most likely token, `tokens`, and `demonstrated/<game>`, the players' success.
    """

    def step(state: TrainState, key: Key[Array, ""], mixture: Mixture, dialogues):
        batch, success = demonstrate(key, mixture, dialogues)
        gradient, stats = batch_gradient(
            policy, state.params, batch, microbatch_episodes=microbatch_episodes
        )
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        state = state.replace(
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            iteration=state.iteration + 1,
            num_updates=state.num_updates + 1,
        )
        stats |= {f"demonstrated/{name}": rate for name, rate in success.items()}
        return state, stats

    return jax.jit(step, donate_argnums=0)


def batch_gradient(
    policy: Policy, params: Params, batch: Batch, *, microbatch_episodes: int
) -> tuple[Params, dict[str, Float[Array, ""]]]:
    """Gradient of the mean loss per reply token of the whole batch, and `stats`.

    Episodes are sorted by length and taken a few at a time, each few at the shortest
    of `NUM_WIDTHS` widths that holds them: padding costs as much as text.

    Raises:
      ValueError: the batch cannot be split evenly.
    """
    num_episodes, max_tokens = batch.tokens.shape
    if num_episodes % microbatch_episodes:
        raise ValueError(
            f"{num_episodes} episodes per step cannot be split into microbatches of "
            f"train.microbatch_episodes = {microbatch_episodes}; change either"
        )
    order = jnp.argsort(batch.lengths)
    chunks = jax.tree.map(
        lambda x: x[order].reshape(-1, microbatch_episodes, *x.shape[1:]), batch
    )
    widths = [-(-max_tokens * (i + 1) // NUM_WIDTHS) for i in range(NUM_WIDTHS)]

    def cut_gradient(width: int):
        def gradient(params, chunk: Batch):
            loss = jax.value_and_grad(reply_loss, argnums=1, has_aux=True)
            (total, hits), gradient = loss(
                policy, params, chunk.tokens[:, :width], chunk.loss_mask[:, :width]
            )
            return gradient, total, hits

        return gradient

    branches = [cut_gradient(width) for width in widths]

    def add(sums, chunk: Batch):
        needed = jnp.searchsorted(jnp.array(widths), jnp.max(chunk.lengths))
        new = jax.lax.switch(needed, branches, params, chunk)
        return jax.tree.map(jnp.add, sums, new), None

    zeros = (jax.tree.map(jnp.zeros_like, params), jnp.float32(0), jnp.int32(0))
    (gradient, total, hits), _ = jax.lax.scan(add, zeros, chunks)
    count = jnp.maximum(jnp.sum(batch.loss_mask[:, 1:]), 1)
    gradient = jax.tree.map(lambda x: x / count, gradient)
    return gradient, {"loss": total / count, "accuracy": hits / count, "tokens": count}


def reply_loss(
    policy: Policy,
    params: Params,
    tokens: Int[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Summed cross-entropy of the masked tokens, and how many were most likely."""
    num_rows, width = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(width - 1)[None], (num_rows, width - 1))
    hidden, _ = policy.forward(params, tokens[:, :-1], positions, None)
    logits = policy.logits(params, hidden)
    targets, is_counted = tokens[:, 1:], loss_mask[:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    hits = (jnp.argmax(logits, axis=-1) == targets) & is_counted
    total = jnp.sum(jnp.where(is_counted, losses, 0.0))
    return total, jnp.sum(hits, dtype=jnp.int32)


def init_state(
    policy: Policy, optimizer: optax.GradientTransformation, key: Key[Array, ""]
) -> TrainState:
    """A fresh model."""

    @jax.jit
    def create(key):
        params = policy.init(key)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(params, optimizer.init(params), zero, zero, zero, zero)

    return create(key)


def _run(config: ConfigDict, workdir: pathlib.Path) -> None:
    """The whole warm start, in a folder that is locked."""
    say = Console(highlight=False, soft_wrap=True).print
    _refuse_changes(workdir, config)
    course = _build_course(config, workdir)
    root = rngs.root_key(config.seed)
    state = init_state(course.policy, course.optimizer, rngs.stream(root, "init"))
    say(
        f"{sum(x.size for x in jax.tree.leaves(state.params)):,} parameters, "
        f"{course.tokenizer.vocab_size} tokens, games {', '.join(course.games)}"
    )
    state = _train(config, workdir, course, state, root, say)
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


def _build_course(config: ConfigDict, workdir: pathlib.Path) -> _Course:
    games = {n: lessons.build_game(**section) for n, section in config.games.items()}
    redraw, discount = _mixture_settings(**config.mixture)
    tokenizer = lessons.load_or_build_tokenizer(
        workdir / "tokenizer", games, config.prompt
    )
    model = _model_config(tokenizer, **config.model)
    policy = build_policy(model)
    optimizer = _build_optimizer(config.train.num_steps, **config.optimizer)
    demonstrate = lessons.make_demonstrate(
        games,
        tokenizer,
        tokenization=config.prompt.tokenization,
        max_reply_tokens=config.max_reply_tokens,
        discount=discount,
    )
    return _Course(
        games=games,
        tokenizer=tokenizer,
        dialogues=lessons.build_dialogues(
            games, tokenizer, config.prompt, config.max_reply_tokens
        ),
        model=model,
        policy=policy,
        optimizer=optimizer,
        mixtures=lessons.build_mixtures(config.demonstrators, redraw=redraw),
        step=make_step(
            policy,
            optimizer,
            demonstrate,
            microbatch_episodes=config.train.microbatch_episodes,
        ),
    )


def _train(
    config: ConfigDict,
    workdir: pathlib.Path,
    course: _Course,
    state: TrainState,
    root: Key[Array, ""],
    say: Callable[[str], None],
) -> TrainState:
    """All steps that are not done yet; a checkpoint now and then."""
    train, model = config.train, course.model.to_hf()
    checkpointer = Checkpointer(workdir, keep=1)
    start = checkpointer.latest or 0
    if start:
        state = checkpointer.restore(start, abstract_state(state), model)
        say(f"resuming after step {start}")
    log = _Log(workdir, start=start, total=train.num_steps, say=say)
    first_steps = config.mixture.first_part * train.num_steps
    for done in range(start + 1, train.num_steps + 1):
        mixture = course.mixtures[done > first_steps]
        key = rngs.step_key(root, done)
        state, stats = course.step(state, key, mixture, course.dialogues)
        is_last = done == train.num_steps
        log.add(stats, done, shows=done % train.log_every == 0 or is_last)
        if done % train.checkpoint_every == 0 or is_last:
            checkpointer.save(done, state, model)
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
    if not 0 <= warmup_steps < num_steps:
        raise ValueError(
            f"optimizer.warmup_steps = {warmup_steps}; it must be at least 0 and below "
            f"train.num_steps = {num_steps}"
        )
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, warmup_steps, num_steps, learning_rate * final_fraction
    )
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(schedule, b1=beta1, b2=beta2, weight_decay=weight_decay),
    )


def _mixture_settings(
    *, redraw: float, first_part: float, discount: float
) -> tuple[float, float]:
    if not 0 <= first_part <= 1:
        raise ValueError(
            f"mixture.first_part = {first_part}; it must lie between 0 and 1"
        )
    if not 0 < discount <= 1:
        raise ValueError(
            f"mixture.discount = {discount}; it must be above 0 and at most 1"
        )
    return redraw, discount


def _refuse_changes(workdir: pathlib.Path, config: ConfigDict) -> None:
    """A run folder belongs to one configuration.

    Raises:
      ValueError: what is there was made with other settings.
    """
    path = workdir / "config.json"
    if path.exists():
        changes = changed_keys(from_json(path.read_text()), config)
        if changes:
            listed = "; ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in changes.items())
            raise ValueError(
                f"{workdir} holds a warm start with other settings ({listed}); use "
                "those settings to resume it, or another --workdir"
            )
    writer.write_text_atomically(path, to_json(config))


class _Log:
    """Averages of the steps since the last line, to the console and metrics.jsonl."""

    def __init__(self, workdir: pathlib.Path, *, start: int, total: int, say):
        self._writer = writer.RunWriter(workdir, after=start, tensorboard=False)
        self._start, self._total, self._say = start, total, say
        self._began = time.monotonic()
        self._sums: list[Mapping[str, Array]] = []

    def add(self, stats: Mapping[str, Array], done: int, *, shows: bool) -> None:
        self._sums.append(stats)
        if not shows:
            return
        rows = jax.device_get(self._sums)
        self._sums = []
        means = {k: float(sum(row[k] for row in rows) / len(rows)) for k in stats}
        self._writer.scalars(done, means)
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

    def close(self) -> None:
        self._writer.close()
