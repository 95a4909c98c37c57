"""Builds tasks in the words of a tokenizer, and their rollouts.

In: a validated configuration, a specification, a tokenizer. Out: a `Task`, and the
compiled rollouts of a policy in it.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.base import PlayBudget
from envs.pictures import draw_cells
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.policy import Policy, build_policy
from ragen_jax.models.vision_config import BoardPictures, HostImages, ShownPictures
from ragen_jax.registry.functions import bind
from ragen_jax.rollout.bonuses import build_bonus, reads_thoughts
from ragen_jax.rollout.collect import Collect
from ragen_jax.rollout.metrics import METRIC_FUNCTIONS
from ragen_jax.rollout.numbers import SAMPLING
from ragen_jax.rollout.replay import make_boards_after
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.tasks.specs import EnvSpec, make_env
from ragen_jax.tasks.task import AgentTask, HostTask, Task
from ragen_jax.text.dialogue import build_call_dialogue, build_dialogue
from ragen_jax.text.pictures import BEGIN, END, HostPicture
from ragen_jax.text.statements import build_facts
from ragen_jax.text.tokenizer import Tokenizer, check_vocabulary


def build_task(
    config: ConfigDict, spec: EnvSpec, tokenizer: Tokenizer, picture_kind: int = 0
) -> Task:
    """The task of a configuration, without a policy. `picture_kind`: see `make_task`.

    Raises:
      ValueError: the environment, its arguments or the wording cannot be used.
    """
    name = config.logging.metrics
    task = make_task(
        spec,
        tokenizer,
        play_rules(config),
        prompt=config.prompt,
        context=config.rollout.context,
        context_turns=config.rollout.context_turns,
        bonus=config.bonus,
        picture_kind=picture_kind,
    )
    more = None if name is None else bind(METRIC_FUNCTIONS[name], config.logging)
    return dataclasses.replace(task, more_metrics=more)


def make_task(
    spec: EnvSpec,
    tokenizer: Tokenizer,
    rules: EpisodeLimits,
    *,
    prompt: Mapping[str, object],
    context: str = "full",
    context_turns: int | None = None,
    bonus: Mapping[str, float | int | None] | None = None,
    picture_kind: int = 0,
) -> Task:
    """A task in the words of a tokenizer, without a policy.

    Args:
      spec: the environment.
      tokenizer: the model's.
      rules: of an episode; their bonus is replaced if `bonus` is given.
      prompt: style, tokenization, length hint, thinking and observation, see
        `build_dialogue`.
      context, context_turns: see `build_dialogue`.
      bonus: settings of `build_bonus`; None: `rules.bonus`.
      picture_kind: number of the task among those of a policy, from 0.
    """
    task = new_task(spec, rules)
    env = task.env
    if isinstance(task, AgentTask):
        limits = task.limits
        dialogue = build_call_dialogue(
            env,
            tokenizer,
            budget=rules.budget,
            max_reply_tokens=rules.max_reply_tokens,
            context_tokens=limits.context_tokens,
            episode_tokens=limits.episode_tokens,
        )
        return dataclasses.replace(task, tokenizer=tokenizer, dialogue=dialogue)
    dialogue = build_dialogue(
        env,
        tokenizer,
        budget=rules.budget,
        max_reply_tokens=rules.max_reply_tokens,
        context=context,
        context_turns=context_turns,
        stop_at_answer=rules.stop_at_answer,
        picture_kind=picture_kind,
        **prompt,
    )
    if isinstance(task, HostTask) and env.image_grid is not None:
        for token in (BEGIN, END):
            tokenizer.id_of(token)  # refuses a tokenizer without it
        dialogue = dialogue.replace(picture=HostPicture(picture_kind, *env.image_grid))
    if dialogue.picture is not None:
        texts = dialogue.picture.texts_of_ids()
        tokenizer = dataclasses.replace(tokenizer, picture_texts=texts)
    if bonus is not None:
        if reads_thoughts(bonus):
            dialogue = dialogue.replace(facts=build_facts(env, tokenizer))
        rules = dataclasses.replace(rules, bonus=build_bonus(env, **bonus))
    return dataclasses.replace(
        task, rules=rules, tokenizer=tokenizer, dialogue=dialogue
    )


def new_task(spec: EnvSpec, rules: EpisodeLimits) -> Task:
    """A task without words.

    Raises:
      ValueError: the game, an argument or a parameter does not exist.
    """
    env, params = make_env(spec)
    if problem := env.budget_problem(rules.budget):
        raise ValueError(f"rollout: {problem}")
    kind = Task
    if spec.host is not None:
        kind = AgentTask if env.makes_calls else HostTask
    boards_after = make_boards_after(env, params)
    return kind(spec.label or env.name, env, params, rules, boards_after=boards_after)


def play_rules(config: ConfigDict) -> EpisodeLimits:
    """The rules of an episode, without a bonus."""
    rollout, names = config.rollout, [f.name for f in dataclasses.fields(PlayBudget)]
    return EpisodeLimits(
        budget=PlayBudget(**{name: config.rollout[name] for name in names}),
        max_reply_tokens=rollout.max_reply_tokens,
        stop_at_answer=rollout.stop_at_answer,
        format_penalty=rollout.format_penalty,
    )


def build_collect(
    config: ConfigDict,
    task: Task,
    policy: Policy,
    mesh: Mesh,
    *,
    num_groups: int,
    group_size: int,
) -> Collect:
    """Compiled training rollouts of a task."""
    names = (*SAMPLING, "compactions", "part_rows", "decode_chunk_tokens")
    names += ("read_chunk_tokens", "decode_attention")
    decoding = {name: config.rollout[name] for name in names}
    sizes = {"num_groups": num_groups, "group_size": group_size}
    return task.make_collect(policy, mesh=mesh, **sizes, **decoding)


def check_sees(config: ConfigDict, model: ModelConfig) -> None:
    """Refuse to show pictures to a network of text.

    Raises:
      ValueError: names both.
    """
    if model.sees:
        return
    path, host = config.model.get("path", "a new model"), config.get("host")
    if config.prompt.observation != "text":
        key, value, text = "prompt.observation", config.prompt.observation, "text"
    elif host is not None and host.image_grid is not None:
        key, value, text = "host.image_grid", host.image_grid, None
    else:
        return
    raise ValueError(
        f"{key}={value!r}, but model.path={path!r} is a {model.model_type!r}, which "
        "reads text alone; use a model that sees (--config=FILE:pocket_vision or "
        f"qwen2.5-vl-3b), or set {key}={text!r}"
    )


def pictures_of(tasks: Sequence[Task], model: ModelConfig) -> tuple[ShownPictures, ...]:
    """What the dialogues of tasks show to a network.

    Raises:
      ValueError: it cannot tell the drawings apart.
    """
    shown = []
    for task in tasks:
        picture = task.dialogue.picture
        if picture is None:
            continue
        grid, windows = (picture.rows, picture.cols), task.dialogue.windows
        # One a turn that the model sees.
        most = task.rules.budget.max_turns if windows is None else windows.num_past + 1
        if isinstance(picture, HostPicture):
            shown.append(HostImages(picture.kind, grid, most))
            continue
        cells = draw_cells(picture.symbols, picture.meanings, model.vision.cell)
        shown.append(BoardPictures(picture.kind, cells, grid, most))
    return tuple(shown)


def show_to(policy: Policy, tasks: Sequence[Task]) -> Policy:
    """The policy of a program, for what other tasks show it.

    Raises:
      ValueError: see `pictures_of`.
    """
    pictures = pictures_of(tasks, policy.config)
    if not pictures:
        return policy
    names = ("dtype", "remat", "attention", "num_ids", "freeze_tower")
    how = {name: getattr(policy, name) for name in names}
    return build_policy(policy.config, **how, pictures=pictures)


def check_fit(config: ConfigDict, task: Task, model: ModelConfig) -> None:
    """Refuse a dialogue longer than the context, or another model's tokenizer."""
    needed = task.dialogue.max_window_tokens
    if needed > model.max_position_embeddings:
        raise ValueError(
            f"an episode may need {needed} tokens of context, but the model has "
            f"{model.max_position_embeddings} positions; lower rollout.max_turns, "
            "rollout.max_reply_tokens or what observations take (host.image_grid, "
            "host.max_observation_tokens), or show it a window (rollout.context)"
        )
    check_vocabulary(config.model.path, task.tokenizer, model.vocab_size)
