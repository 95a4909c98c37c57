"""Supervised fine-tuning: teach a model to play like demonstrators.

In: a configuration and a run folder. Out: `<workdir>/model`, a checkpoint in Hugging
Face layout with its tokenizer, and `<workdir>/scores.json`. Every step plays episodes
on the device, through the dialogue of the rollouts, and trains on the replies, their
end-of-turn token included; messages of the environment are never in the loss.

A small new model learns from new episodes of a mixture of demonstrators at every step
(`configs/pocket.py`); a checkpoint is fine-tuned, whole or in adapters, on a data set
of solved episodes (`configs/sft.py`). The two differ in the model (`model.py`) and in
the episodes of a step (`sampler.py`). Train state, run folder, display and statistics
are those of `ragen_jax.train`.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
from jaxtyping import Array
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.evaluation.harness import format_score
from ragen_jax.learner.state import (
    TrainState,
    abstract_network,
    all_but_tower,
    describe,
    init_network,
    init_state,
)
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.hf.weights import Texts, save_checkpoint
from ragen_jax.program.build import BUILT_IN, num_params
from ragen_jax.program.reading import CURE_OF_TUNING, warn_of_unread_words
from ragen_jax.runs.console import Display
from ragen_jax.runs.folder import RunFolder
from ragen_jax.runs.progress import working
from ragen_jax.runs.stop import StopRequest, stop_when_clean
from ragen_jax.runs.writer import write_text_atomically
from ragen_jax.sft.data import (
    DemoTask,
    build_data_sets,
    build_demo_tasks,
    build_mixtures,
    build_tasks,
    make_demonstrate,
)
from ragen_jax.sft.evaluate import make_score
from ragen_jax.sft.model import SFTModel, build_model
from ragen_jax.sft.rules import declared, num_steps, validate
from ragen_jax.sft.sampler import make_draw
from ragen_jax.sft.step import METRICS, build_optimizer, make_step
from ragen_jax.tasks.build import check_sees
from ragen_jax.tasks.task import Task
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class SFTProgram:
    """The model and the functions of one run.

    Attributes:
      tasks: demonstrated tasks.
      model: the model that is trained.
      num_steps: steps of the whole run.
      init: `()` -> the train state before the first step.
      step: `(state, number)` -> the next state and metrics; steps count from 1, the
        state is donated.
      score: parameters of the plain network -> scores by task.
    """

    tasks: dict[str, DemoTask]
    model: SFTModel
    num_steps: int
    init: Callable[[], TrainState]
    step: Callable[[TrainState, int], tuple[TrainState, dict[str, Array]]]
    score: Callable[[Params], dict[str, dict[str, float]]]


def train(config: ConfigDict, workdir: pathlib.Path) -> int:
    """Train on demonstrations, write the model and its scores; resumes an old run.

    Returns:
      Exit status: 0 when done, 143 (or 130) when a signal asked to stop and the state
      was saved.

    Raises:
      ValueError: the configuration or the run folder does not allow it.
    """
    validate(config)
    host_games = [s.host for s in config.games.values() if s.host is not None]
    doing = "loading the model and the games"
    if host_games:
        doing += f" and playing demonstrations of {', '.join(host_games)}"
    with working(doing):
        program = build_program(config, workdir / "tokenizer")
    model, total = program.model, program.num_steps
    evaluation = config.evaluation.to_dict()
    with RunFolder(
        workdir, config, model.identity, keep=1, free=declared(config).mutable
    ) as folder:
        records = folder.open_record()
        model.write_tokenizer()
        names = tuple(program.tasks)
        display = Display(
            names,
            start=folder.start,
            total=total,
            metrics=METRICS,
            num_layers=model.config.num_hidden_layers,
        )
        with display, StopRequest(display.say) as stop:
            if not model.is_new:
                _score(program, model.weights, evaluation, folder, display, "before")
            state = _train(program, config.train, folder, records, stop, display)
        if stop.requested:
            done = int(state.iteration)
            display.say(f"stopped after step {done} of {total}, saved")
            return stop.exit_status
        params = model.merge(state.params)
        output = workdir / "model"
        with stop_when_clean():
            texts = Texts(model.tokenizer_folder)
            save_checkpoint(output, model.config, params, texts)
        _score(program, params, evaluation, folder, display, "after")
        display.say(f"wrote the model to {output}, its scores to {workdir}/scores.json")
    return 0


def build_program(config: ConfigDict, new_tokenizer: pathlib.Path) -> SFTProgram:
    """Build model, tasks and compiled functions; nothing is written.

    Args:
      config: validated.
      new_tokenizer: folder for the tokenizer of a new model.

    Raises:
      ValueError: a value does not fit a game, the model or another value.
    """
    model = build_model(config, new_tokenizer)
    check_sees(config, model.config)
    demos = build_demo_tasks(config, model.tokenizer)
    model = model.showing([demo.task for demo in demos.values()])
    if config.model.get("path") in BUILT_IN:
        games = [demo.task.env for demo in demos.values()]
        warn_of_unread_words(games, model.tokenizer, CURE_OF_TUNING)
    eval_tasks = build_tasks(
        config, model.tokenizer, config.evaluation.max_reply_tokens
    )
    tasks = {name: demo.task for name, demo in demos.items()}
    _check_context(tasks, model.config, "max_reply_tokens")
    _check_context(eval_tasks, model.config, "evaluation.max_reply_tokens")
    total = num_steps(config)
    decays = all_but_tower if model.policy.freeze_tower else None
    optimizer = build_optimizer(total, **config.optimizer, decays=decays)
    root, mesh = rngs.root_key(config.seed), make_mesh(data=1, fsdp=1, tensor=1)

    def first_state(network: Callable, params: Params) -> TrainState:
        axes = model.trainable.logical_axes
        policy = network(params, optimizer, mesh, axes)
        return init_state(policy, None, mesh, kl_coeff=0.0)

    key = rngs.stream(root, "init")
    abstract = describe(first_state(abstract_network, jax.eval_shape(model.init, key)))
    compiled_step = make_step(
        model.trainable,
        optimizer,
        make_demonstrate(
            demos,
            tokenization=config.prompt.tokenization,
            discount=config.mixture.discount,
        ),
        abstract,
        microbatch_episodes=config.train.microbatch_episodes,
        num_widths=config.train.num_widths,
        logprob_chunk_tokens=config.train.logprob_chunk_tokens,
        prompt_loss_weight=config.train.prompt_loss_weight,
    )
    demonstrations = _make_demonstrations(config, demos, root, total, model.config)

    def step(state: TrainState, number: int):
        return compiled_step(model.frozen, state, *demonstrations(number))

    # Traced before anything is written, since only the demonstrators check some values.
    jax.eval_shape(lambda state: step(state, 1), abstract)
    return SFTProgram(
        tasks=demos,
        model=model,
        num_steps=total,
        init=lambda: first_state(init_network, model.init(key)),
        step=step,
        score=make_score(
            model.policy,
            eval_tasks,
            num_prompts=config.evaluation.num_prompts,
            temperature=config.evaluation.temperature,
            seed=config.evaluation.seed,
        ),
    )


def _make_demonstrations(
    config: ConfigDict,
    demos: Mapping[str, DemoTask],
    root: Array,
    total: int,
    model: ModelConfig,
) -> Callable[[int], tuple]:
    """Build `demonstrations(step) -> arguments of demonstrate`; steps count from 1.

    Host games are played here, before the first step; `model` sees their images.
    """
    mixtures = build_mixtures(config.demonstrators, redraw=config.mixture.redraw)
    first_part = config.mixture.first_part * total
    data_sets = {True: build_data_sets(demos, mixtures[True], root, model)}
    if first_part > 0:
        data_sets[False] = build_data_sets(demos, mixtures[False], root, model)
    draw = make_draw(demos, root, num_epochs=config.train.num_epochs)
    dialogues = {name: demo.task.dialogue for name, demo in demos.items()}

    def demonstrations(number: int) -> tuple:
        is_rest = number > first_part
        return draw(number), mixtures[is_rest], dialogues, data_sets[is_rest]

    return demonstrations


def _train(
    program: SFTProgram,
    settings: ConfigDict,
    folder: RunFolder,
    records: list[Mapping],
    stop: StopRequest,
    display: Display,
) -> TrainState:
    """The remaining steps, or those up to a stop; saves at intervals.

    Args:
      program: built.
      settings: the section `train` of the configuration.
      folder: open, with its `records` so far, to which the metrics are added.
      stop: asked after every step.
      display: of the console.
    """
    model, total = program.model, program.num_steps
    state = program.init()
    size = f"{num_params(state.params):,}"
    if model.frozen is not None:
        size += f" over {num_params(model.frozen):,} frozen"
    display.say(
        f"{size} parameters, {model.tokenizer.vocab_size} tokens, games "
        f"{', '.join(program.tasks)}"
    )
    state = folder.restore(state)
    for note in folder.notes:
        display.say(note)
    if folder.is_resumed:
        display.say(f"resuming after step {folder.start}")
    for done in range(folder.start + 1, total + 1):
        with display.timed({}, "step"):
            state, metrics = program.step(state, done)
            metrics = jax.device_get(metrics)
        news = folder.write_metrics(done, metrics)
        records.append({"iteration": done} | metrics)
        is_last = done == total or stop.requested
        if done % settings.log_every == 0 or done == total:
            display.iteration(done, _means(records, metrics, settings.log_every))
        # A task's success is not finite once its data set is used up: nothing to
        # report.
        if not math.isfinite(metrics["loss"]):
            display.say(*news)
        if done % settings.checkpoint_every == 0 or is_last:
            folder.save(done, state)
        if is_last:
            break
    folder.finish()
    return state


def _means(
    records: Sequence[Mapping], names: Iterable[str], every: int
) -> dict[str, float]:
    """Means over the steps since the last line, those before a resume included."""
    reported = (records[-1]["iteration"] - 1) // every * every
    rows = [record for record in records if record["iteration"] > reported]

    def value(row: Mapping, name: str) -> float:
        # A task without demonstrations in a step has null for its success.
        return math.nan if row.get(name) is None else row[name]

    return {name: sum(value(row, name) for row in rows) / len(rows) for name in names}


def _score(
    program: SFTProgram,
    params: Params,
    settings: Mapping[str, float],
    folder: RunFolder,
    display: Display,
    when: str,
) -> None:
    """Play the validation prompts; the scores go to `scores.json` under `when`.

    Scores from before training are measured once for `settings`, the section
    `evaluation` of the configuration.
    """
    path = folder.path / "scores.json"
    known = _read_scores(path)
    if known.get("evaluation") != settings:
        known = {"evaluation": settings}
    if when == "before" and when in known:
        return
    with display.timed({}, f"testing, {when} training"):
        scores = program.score(params)
    # JSON has no NaN.
    known[when] = {
        name: {k: v if math.isfinite(v) else None for k, v in values.items()}
        for name, values in scores.items()
    }
    write_text_atomically(path, json.dumps(known, indent=2) + "\n")
    for name, values in scores.items():
        display.say(f"{when} training, {name}: {format_score(values)}")


def _read_scores(path: pathlib.Path) -> dict:
    """Scores of an earlier call; empty without a file."""
    if not path.exists():
        return {}
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it") from error
    if not isinstance(scores, dict):
        raise ValueError(f"{path} is not a file of scores; remove it")
    return scores


def _check_context(tasks: Mapping[str, Task], model: ModelConfig, limit: str) -> None:
    for name, task in tasks.items():
        needed = task.dialogue.max_window_tokens
        if needed > model.max_position_embeddings:
            raise ValueError(
                f"an episode of {name} may need {needed} tokens, more than "
                f"model.max_position_embeddings = {model.max_position_embeddings}; "
                "raise it (or use a model with a longer context), or lower "
                f"{limit} or games.{name}.max_turns"
            )
