"""A task: a game with its dialogue, its rules and its ceiling.

In: a game, its text and, later, a policy's rollouts. Out: episodes, their metrics and
their records. `Task` is of an array environment, `HostTask` of a host game: each knows
how it is played on tokens and in text. `AgentTask` is of a program that calls the
model.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, Key

from envs.base import EnvParams, TextGame, make_ceiling
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import Collect, Rollouts, make_collect
from ragen_jax.rollout.host.agents import AgentCollector, demonstrate
from ragen_jax.rollout.host.calls import CallLimits
from ragen_jax.rollout.host.env import HostGameEnv
from ragen_jax.rollout.host.games import HostCollector
from ragen_jax.rollout.host.text import (
    AgentChatGame,
    Chat,
    ChatGame,
    HostChatGame,
)
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.metrics import rollout_metrics
from ragen_jax.rollout.records import add_boards, episodes
from ragen_jax.rollout.replay import grid_of
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.calls import CallWriter
from ragen_jax.text.chat import forced_prefix, jinja_template
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import EnvState, Params, Trajectory


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A game and how it is played.

    Attributes:
      name: name in metrics and records.
      env, params: the game and its parameters.
      rules: budget, reply length, penalties and bonuses of an episode.
      tokenizer, dialogue: how states become tokens and replies become actions; None
        for a model behind an API, which exchanges text.
      training, validation: the policy's rollouts; None before `build.bind_policy`.
      play_quality: comparison of episodes with the exact solver's; None before, too.
      boards_after: the board after every action, if the game shows one.
      more_metrics: the user's function of metrics, an entry of `METRIC_FUNCTIONS`.
    """

    name: str
    env: TextGame
    params: EnvParams
    rules: EpisodeLimits
    tokenizer: Tokenizer | None = None
    dialogue: Dialogue | None = None
    training: Rollouts | None = None
    validation: Rollouts | None = None
    play_quality: Callable[..., dict[str, float]] | None = None
    boards_after: Callable[[Trajectory], Array] | None = None
    more_metrics: Callable[[Trajectory], Mapping[str, float]] | None = None

    def collect(self, params: Params, step_key: Key[Array, ""]) -> Trajectory:
        """One training rollout."""
        return self.training.play(params, self.dialogue, step_key)

    def collect_validation(self, params: Params, sample: int = 0) -> Trajectory:
        """One episode of each validation prompt."""
        return self.validation.play(params, self.dialogue, sample)

    def measure(self, rollout: Trajectory, group_size: int) -> dict[str, float]:
        """Metrics of episodes, by the last part of their names.

        Raises:
          ValueError: the user's function returns no mapping, or a name that is taken.
        """
        values = rollout_metrics(rollout, group_size=group_size)
        if self.more_metrics is not None:
            more = self.more_metrics(rollout)
            if not isinstance(more, Mapping) or more.keys() & values.keys():
                raise ValueError(
                    f"logging.metrics: {more!r} is not a mapping of new names"
                )
            values |= more
        return {name: float(value) for name, value in jax.device_get(values).items()}

    def records(self, rollout: Trajectory, count: int | None = None) -> list[dict]:
        """Records of the first `count` rows, see `ragen_jax.rollout.records`."""
        records = episodes(rollout, self.tokenizer, self.dialogue.prompts, count)
        self.add_boards(records, rollout)
        return records

    def add_boards(self, records: Sequence[dict], rollout: Trajectory) -> None:
        """Add the board after every action to records of the first rows."""
        if self.boards_after is not None:
            on_host = jax.device_get(rollout)
            rows = jax.tree.map(lambda x: x[: len(records)], on_host)
            boards = jax.device_get(self.boards_after(rows))
            add_boards(records, boards, grid_of(self.env).symbols)

    @functools.cached_property
    def ceiling(self) -> Callable[[EnvState], float | None]:
        """Success of the solver on levels, given their states; None: unknown."""
        return make_ceiling(self.env, self.params, self.rules.budget)

    def make_collect(self, policy: Policy, **arguments: Any) -> Collect:
        """Rollouts by a policy; arguments as of `make_collect`, but for the rules."""
        return make_collect(
            self.env, self.params, policy, rules=self.rules, **arguments
        )

    @property
    def chat_template(self) -> str:
        """What writes chat messages as the policy has read them; Jinja."""
        prefix = forced_prefix(self.dialogue.thinking)
        return jinja_template(prefix, self.dialogue.prompts.markup)

    def make_chat(self, chat: Chat) -> ChatGame:
        return ChatGame(self.env, self.params, self.rules, chat)

    def stop_games(self) -> None:
        """End the games that a training rollout in another thread waits for."""


class HostTask(Task):
    """A host game and how it is played."""

    env: HostGameEnv

    @property
    def ceiling(self) -> Callable[[EnvState], float | None]:
        """Success of the game's solutions on any level; None if unknown."""
        return lambda levels: self.env.ceiling(self.rules.budget)

    def make_collect(self, policy: Policy, **arguments: Any) -> HostCollector:
        # All rows are in memory while their games step: there are no parts.
        arguments.pop("part_rows", None)
        return HostCollector(
            self.env,
            self.params,
            policy,
            tokenizer=self.tokenizer,
            rules=self.rules,
            **arguments,
        )

    def make_chat(self, chat: Chat) -> HostChatGame:
        return HostChatGame(self.env, self.params, self.rules, chat)

    def stop_games(self) -> None:
        self.training.collect.close()


class AgentTask(HostTask):
    """A program that calls the model, and how it is played."""

    @property
    def limits(self) -> CallLimits:
        """Of an episode."""
        return self.env.call_limits(self.rules.budget, self.rules.max_reply_tokens)

    @property
    def chat_template(self) -> str:
        return CallWriter(self.tokenizer).template

    def demonstrate(self, keys: RolloutKeys, num_rows: int) -> Trajectory:
        """Episodes by the expert; see `agents.demonstrate`."""
        num_actions = self.rules.budget.max_actions_per_turn
        sizes = self.limits, num_actions, keys, num_rows
        return demonstrate(self.env, self.tokenizer, *sizes)

    def make_chat(self, chat: Chat) -> AgentChatGame:
        return AgentChatGame(self.env, self.params, self.rules, chat)

    def make_collect(self, policy: Policy, **arguments: Any) -> AgentCollector:
        # Rows join and leave the batch: it is neither cut nor made smaller.
        for name in ("part_rows", "compactions"):
            arguments.pop(name, None)
        return AgentCollector(
            self.env,
            self.params,
            policy,
            tokenizer=self.tokenizer,
            limits=self.limits,
            rules=self.rules,
            **arguments,
        )


def check_names(tasks: Sequence[Task]) -> None:
    """Refuse tasks with the same name in metrics."""
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"env.mix has two entries named {name!r} in metrics; give one a label, "
                "e.g. ('sokoban', 4, {'label': 'Second'})"
            )
