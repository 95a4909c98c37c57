"""Evaluation of a model behind an OpenAI-compatible API.

In: a configuration, the settings of the API and a journal. Out: evaluation tasks and
scores like those of a policy on this machine. Several conversations run at a time;
replies and finished episodes go to the journal, from which an interrupted evaluation
resumes.
"""

import asyncio
import dataclasses
import os
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from ml_collections import ConfigDict

from ragen_jax.config import (
    VALIDATION_SETTINGS,
    check_kind,
    pass_at,
    refuse_unread,
    validate,
)
from ragen_jax.diagnostics.timing import time_left
from ragen_jax.evaluation.api.client import (
    DialogueRefused,
    Endpoint,
    EndpointError,
    read_extra_body,
)
from ragen_jax.evaluation.api.journal import (
    Journal,
    Place,
    Prices,
    play_metrics,
    token_metrics,
)
from ragen_jax.evaluation.evaluate import level_facts
from ragen_jax.evaluation.harness import describe, playable, suite_configs
from ragen_jax.evaluation.results import EvalResult
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.evaluation.suites import EvalTask
from ragen_jax.rollout.host.loop import play_turns
from ragen_jax.rollout.host.text import FILTERED, NO_ROOM, ChatGame, ChatReply
from ragen_jax.rollout.keys import validation_keys
from ragen_jax.rollout.records import chat_record
from ragen_jax.tasks.chat import build_chat
from ragen_jax.tasks.task import Task
from ragen_jax.terminal import columns, fit, say
from ragen_jax.text.messages import Message

# Length of a reply in place of the pocket model's.
REPLY_TOKENS = 400
# Keys that an evaluation over an API reads.
READ_KEYS = (
    "env",
    "prompt.style",
    "prompt.thinking",
    "prompt.length_hint_words",
    "prompt.observation",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
    "rollout.max_reply_tokens",
    "rollout.stop_at_answer",
    "rollout.context",
    "rollout.context_turns",
    "rollout.format_penalty",
    "rollout.max_failed_fraction",
    "host.wrappers",
    "host.max_observation_tokens",
    "host.start_seconds",
    "host.step_seconds",
    "host.max_worker_bytes",
    "evaluation.num_prompts",
    "evaluation.num_samples",
    "evaluation.pass_at",
    "evaluation.temperature",
    "evaluation.seed",
)


def prepare(
    config: ConfigDict, changes: Mapping[str, object], overrides: Collection[str]
) -> ConfigDict:
    """The configuration for a model behind an API: full wording, room for a thought.

    Args:
      config: of the task; changed in place.
      changes: values by dotted key, set on top.
      overrides: dotted paths that the user set; their values stay.

    Raises:
      ValueError: an override has no effect over an API, or a key is invalid.
    """
    check_kind(config)
    refuse_unread(overrides, READ_KEYS, "with --api.base_url")
    if config.prompt.style == "terse" and "prompt.style" not in overrides:
        config.prompt.style = "full"
        if "rollout.max_reply_tokens" not in overrides:
            config.rollout.max_reply_tokens = REPLY_TOKENS
    config.update_from_flattened_dict({**changes, "rollout.ahead": 0})
    config.mesh.update(data=1, fsdp=1, tensor=1)
    validate(config, overrides)
    return config


def check_api(api: ConfigDict) -> None:
    """Refuse settings that cannot be used.

    Raises:
      ValueError: names the setting and the cure.
    """
    if not api.model:
        raise ValueError("--api.base_url needs --api.model, the name of the model")
    if not re.fullmatch(r"[A-Za-z_]\w*", api.key_env, re.ASCII):
        # The value is not repeated: it may be the key itself.
        raise ValueError(
            "--api.key_env must be the name of an environment variable, e.g. "
            "OPENAI_API_KEY; the key itself belongs in that variable"
        )
    for name in ("concurrency", "timeout_seconds", "retry_seconds"):
        if api[name] <= 0:
            raise ValueError(f"--api.{name}={api[name]} must be above 0")
    prices = ("input_price", "output_price", "cached_input_price")
    for name in ("max_retries", *prices):
        if api[name] is not None and api[name] < 0:
            raise ValueError(f"--api.{name}={api[name]} must be at least 0")
    given = [name for name in prices if api[name] is not None]
    if given and None in (api.input_price, api.output_price):
        raise ValueError(
            f"--api.{given[0]} alone gives no cost; set --api.input_price and "
            "--api.output_price"
        )
    read_extra_body(api.extra_body)


def api_evaluations(
    config: ConfigDict,
    api: ConfigDict,
    journal: Journal,
    *,
    suite: str | None,
    overrides: Collection[str] = (),
) -> list[EvalTask]:
    """The evaluation tasks of a model behind an endpoint.

    Args:
      config: see `prepare`.
      api: see `check_api`.
      journal: of replies and finished conversations.
      suite: entry of `suites.SUITES`; None: the tasks of the configuration.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such suite or game.
    """
    entries = suite_configs(config, suite, overrides)
    return playable(
        entries, lambda changed, entry: _evaluation(changed, entry, api, journal)
    )


def _evaluation(
    config: ConfigDict, entry: EvalTask, api: ConfigDict, journal: Journal
) -> EvalTask:
    task, game = build_chat(config, entry.spec)
    settings = describe(config, entry.spec, task.env)
    evaluation = config.evaluation
    num_prompts, num_samples = evaluation.num_prompts, evaluation.num_samples
    prices = Prices(api.input_price, api.output_price, api.cached_input_price)

    def play() -> EvalResult:
        samples = [
            validation_keys(evaluation.seed, num_prompts, i) for i in range(num_samples)
        ]
        levels = game.levels(samples[0])
        # A prompt's samples are adjacent.
        noise = [
            keys.noise[prompt] for prompt in range(num_prompts) for keys in samples
        ]
        conversations = Conversations(
            task, game, levels, noise, _settings(config, api, settings), journal
        )

        async def play_here():
            async with _endpoint(config, api) as endpoint:
                return await conversations.play(endpoint, prices, api.concurrency)

        records = asyncio.run(play_here())
        success = np.array([r["success"] for r in records]).reshape(num_prompts, -1)
        game.check(len(records))
        ceiling = task.ceiling(jax.tree.map(jnp.asarray, levels))
        metrics = play_metrics(records) | token_metrics(records, prices)
        if metrics["num_turns"] and not metrics["format"]:
            say(_no_format(task.name, records, config), sys.stderr)
        metrics |= summarize(success, ceiling, pass_at(config))
        metrics |= {name: float(evaluation[name]) for name in VALIDATION_SETTINGS}
        metrics |= level_facts(task.env, has_ceiling="ceiling" in metrics)
        return EvalResult(metrics, success.sum(axis=1), lambda: records)

    spec = dataclasses.replace(entry.spec, label=task.name)
    return dataclasses.replace(entry, spec=spec, settings=settings, play=play)


def _settings(
    config: ConfigDict, api: ConfigDict, played: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings that all conversations of a task must share."""
    rollout, prompt, evaluation = config.rollout, config.prompt, config.evaluation
    return {
        "model": api.model,
        "temperature": evaluation.temperature,
        "seed": evaluation.seed,
        "num_samples": evaluation.num_samples,
        "extra_body": read_extra_body(api.extra_body),
        "style": prompt.style,
        "thinking": prompt.thinking,
        "length_hint_words": prompt.length_hint_words,
        "context": rollout.context,
        "context_turns": rollout.context_turns,
        "format_penalty": rollout.format_penalty,
        # Left out where they are off: earlier conversations have no such settings.
        **({"stop_at_answer": True} if rollout.stop_at_answer else {}),
        **({"observation": shown} if (shown := prompt.observation) != "text" else {}),
        **played,
    }


def _endpoint(config: ConfigDict, api: ConfigDict) -> Endpoint:
    body = {
        "model": api.model,
        "temperature": config.evaluation.temperature,
        "max_tokens": config.rollout.max_reply_tokens,
    } | read_extra_body(api.extra_body)
    return Endpoint(
        api.base_url,
        key=os.environ.get(api.key_env) or None,
        key_env=api.key_env,
        body={name: value for name, value in body.items() if value is not None},
        timeout_seconds=api.timeout_seconds,
        max_retries=api.max_retries,
        retry_seconds=api.retry_seconds,
    )


def _no_format(
    name: str, records: Sequence[Mapping[str, Any]], config: ConfigDict
) -> str:
    """Why nothing can succeed, when no reply has the form that the prompt asks for."""
    form = "<answer>...</answer>"
    form = f"<think>...</think>{form}" if config.prompt.thinking else form
    first = next(turn["reply"] for r in records for turn in r["turns"])
    cut = sum(t["is_cut"] for r in records for t in r["turns"])
    cure = (
        f"{cut} were cut at rollout.max_reply_tokens = "
        f"{config.rollout.max_reply_tokens}: raise it"
        if cut
        else "see the replies in the journal; --config.prompt.thinking=False asks for "
        "an answer alone"
    )
    return (
        f"note: none of the replies of {name} has the form {form}, so no action was "
        f"played; the first begins {first[:60]!r}; {cure}"
    )


# Finish reason -> what a note says about a dialogue that the API refuses.
_REFUSALS = {
    NO_ROOM: (
        "a conversation is longer than the model's context",
        "see the metric reply_is_cut, and shorten dialogues by "
        "--config.rollout.context=last_k or --config.rollout.max_turns",
    ),
    FILTERED: (
        "a filter of the API refuses a conversation",
        "it counts as an empty reply; turn the filter off where the API lets you",
    ),
}
_KEPT = "They are kept, like the replies of the others: the same command resumes"
# Between two lines of progress.
_QUIET_SECONDS = 10.0


class Progress:
    """Lines on standard error during the conversations of a task.

    Args:
      name: of the task.
      records: of the conversations that the journal holds.
      total: number of conversations.
    """

    def __init__(self, name: str, records: Sequence[Mapping[str, Any]], total: int):
        self._name, self._total = name, total
        self._done, self._first = len(records), len(records)
        self._successes = sum(record["success"] for record in records)
        self._prompt_tokens = self._reply_tokens = 0
        self._said: set[str] = set()
        self._began = self._printed = time.monotonic()

    def replied(self, reply: ChatReply) -> None:
        """Count the tokens of a reply."""
        self._prompt_tokens += reply.prompt_tokens or 0
        self._reply_tokens += reply.reply_tokens or 0

    def refused(self, error: DialogueRefused) -> None:
        """Say, once per task and reason, that a conversation ends by a refusal."""
        if error.reason not in self._said:
            self._said.add(error.reason)
            what, cure = _REFUSALS[error.reason]
            say(f"note: {self._name}: {what} and ends ({error}); {cure}", sys.stderr)

    def finished(self, record: Mapping[str, Any], prices: Prices, retries: int) -> None:
        """Count a finished conversation, and print a line now and then."""
        self._done += 1
        self._successes += record["success"]
        now = time.monotonic()
        if now - self._printed < _QUIET_SECONDS and self._done < self._total:
            return
        self._printed = now
        tokens = {
            "prompt_tokens": self._prompt_tokens,
            "sampled_tokens": self._reply_tokens,
            "cached_tokens": 0,
        }
        cost = prices.cost(tokens)
        start = f"{self._name}: {self._done}/{self._total} conversations"
        words = [
            f"success {self._successes / self._done:.1%}",
            time_left(
                now - self._began,
                num_done=self._done - self._first,
                num_left=self._total - self._done,
            ),
            *([f"cost up to {cost:.4g}"] if cost is not None else []),
            *([f"{retries} retries"] if retries else []),
            f"{self._prompt_tokens:,} + {self._reply_tokens:,} tokens now",
        ]
        print(fit(start, words, columns(sys.stderr)), file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Conversations:
    """The episodes of a task, one per row.

    Attributes:
      task: without tokens.
      game: its game in chat messages.
      levels: of the game, one per prompt, on the host.
      noise_keys: one per row; the rows of a prompt are adjacent.
      settings: everything that replies depend on; a journal of other settings is
        refused.
      journal: of replies and finished episodes.
    """

    task: Task
    game: ChatGame
    levels: Any
    noise_keys: Sequence[Key[Array, ""]]
    settings: Mapping[str, Any]
    journal: Journal

    async def play(
        self, endpoint: Endpoint, prices: Prices, concurrency: int
    ) -> list[dict[str, Any]]:
        """Play every row that the journal lacks, `concurrency` at a time.

        Returns:
          A record per row, in order.

        Raises:
          EndpointError: an episode could not be finished.
          ValueError: the journal holds the task under other settings.
        """
        journal, name, num_rows = self.journal, self.task.name, len(self.noise_keys)
        journal.begin(name, self.settings)
        places = [(name, row) for row in range(num_rows)]
        records = [journal.finished[p] for p in places if p in journal.finished]
        progress = Progress(name, records, num_rows)
        waiting = iter([p for p in places if p not in journal.finished])
        failures: list[EndpointError] = []
        # By row: of first messages.
        refused: dict[Place, DialogueRefused] = {}

        async def work() -> None:
            for place in waiting:
                if failures:
                    return
                try:
                    record = await self._converse(
                        place, endpoint, progress, refused.get(place)
                    )
                except DialogueRefused as refusal:
                    refused[place] = refusal
                except EndpointError as failure:
                    failures.append(failure)
                else:
                    progress.finished(record, prices, endpoint.num_retries)

        await asyncio.gather(*(work() for _ in range(concurrency)))
        if len(refused) == num_rows:
            # What all rows share is too long: the task's words, or max_tokens.
            failures += refused.values()
        elif refused and not failures:
            waiting = iter(refused)
            await work()
        if failures:
            done = sum(place in journal.finished for place in places)
            state = f"{done} of {num_rows} conversations of {name} are finished"
            ending = f". {_KEPT}" if done else ""
            raise EndpointError(f"{failures[0]} ({state}{ending})")
        return [journal.finished[place] for place in places]

    async def _converse(
        self,
        place: Place,
        endpoint: Endpoint,
        progress: "Progress",
        refusal: DialogueRefused | None,
    ) -> dict[str, Any]:
        """Play a row from the replies of the journal on, and record it there.

        Args:
          place: of the row.
          endpoint: that replies.
          progress: is told of replies and refusals.
          refusal: of the row's first message, by an earlier request.

        Raises:
          DialogueRefused: that of the first message, not known so far.
          EndpointError: no other row would be answered either.
        """
        journal, row = self.journal, place[1]
        known, is_over = journal.replies(place), False
        may_refuse = refusal is None
        per_level = len(self.noise_keys) // len(jax.tree.leaves(self.levels)[0])
        level = jax.tree.map(lambda x: x[row // per_level], self.levels)
        episode = self.game.episode(level, self.noise_keys[row])

        await episode.begin()

        async def ask(turn: int, messages: Sequence[Message]) -> ChatReply | None:
            nonlocal is_over, refusal
            if turn < len(known):
                return known[turn]
            if is_over and not episode.is_lost:
                return None
            if refusal is None and not episode.is_lost:
                try:
                    reply = await endpoint.reply(messages, row, episode.options)
                except DialogueRefused as error:
                    if may_refuse and not known:
                        raise
                    refusal = error
                else:
                    journal.add_reply(place, reply)
                    progress.replied(reply)
                    return known[turn]
            # Not in the journal: a server with a longer context may go on.
            if refusal is not None:
                progress.refused(refusal)
            reason = NO_ROOM if refusal is None else refusal.reason
            is_over, refusal = not episode.owns_dialogue, None
            return ChatReply("", reason, 0, 0, 0, "")

        try:
            trajectory = await play_turns(episode, ask)
        except DialogueRefused:
            episode.release()
            raise
        record = chat_record(trajectory, episode.turns, self.game.chat)
        self.task.add_boards([record], trajectory)
        label = {"environment": self.task.name, "row": row, "settings": self.settings}
        journal.add_conversation(place, label | record)
        return record
