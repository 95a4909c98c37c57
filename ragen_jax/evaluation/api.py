"""Evaluation of a model behind an OpenAI-compatible endpoint.

In: a configuration, the settings of an endpoint and a folder. Out: the same evaluation
tasks and scores as of a policy on this machine. Episodes are played by threads, written
to a journal as they end, and resumed from it.
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

from ragen_jax.config import VALIDATION_SETTINGS, pass_at, validate
from ragen_jax.evaluation.api_client import Endpoint, EndpointError, read_extra_body
from ragen_jax.evaluation.api_journal import (
    Journal,
    Prices,
    play_metrics,
    token_metrics,
)
from ragen_jax.evaluation.harness import describe, suite_configs
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.evaluation.suites import EvalTask
from ragen_jax.rollout.collect import validation_keys
from ragen_jax.rollout.host import ChatReply, TextGame
from ragen_jax.tasks import EnvSpec, make_ceiling, make_env, play_rules
from ragen_jax.text.messages import Message
from ragen_jax.text.prompts import build_wording
from ragen_jax.types import EnvState

# Tokens of a reply where the configuration is sized for the pocket model.
REPLY_TOKENS = 400
# What an evaluation by endpoint reads of a configuration.
READ_KEYS = (
    "env",
    "prompt.style",
    "prompt.thinking",
    "prompt.length_hint_words",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
    "rollout.max_reply_tokens",
    "rollout.context",
    "rollout.context_turns",
    "rollout.format_penalty",
    "evaluation.num_prompts",
    "evaluation.num_samples",
    "evaluation.pass_at",
    "evaluation.temperature",
    "evaluation.seed",
)


def prepare(
    config: ConfigDict, changes: Mapping[str, object], overrides: Collection[str]
) -> ConfigDict:
    """A configuration as endpoints need it: the full wording, room for a thought.

    Args:
      config: of the task; changed in place.
      changes: values by dotted key, set on top.
      overrides: dotted paths that the user set; they are left as they are.

    Raises:
      ValueError: an override has no effect here, or a key is wrong.
    """
    for key in overrides:
        if not any(f"{key}.".startswith(f"{known}.") for known in READ_KEYS):
            raise ValueError(
                f"--config.{key} has no effect with --api.base_url: a model behind an "
                f"endpoint brings its own; leave it out ({', '.join(READ_KEYS)} are "
                "read)"
            )
    if config.prompt.style == "terse" and "prompt.style" not in overrides:
        config.prompt.style = "full"
        if "rollout.max_reply_tokens" not in overrides:
            config.rollout.max_reply_tokens = REPLY_TOKENS
    config.update_from_flattened_dict(changes)
    config.mesh.update(data=1, fsdp=1, tensor=1)
    validate(config, overrides)
    return config


def check_api(api: ConfigDict) -> None:
    """Refuse settings that make no sense.

    Raises:
      ValueError: names the setting and the cure.
    """
    if not api.model:
        raise ValueError("--api.base_url needs --api.model, the model's name there")
    if not re.fullmatch(r"[A-Za-z_]\w*", api.key_env, re.ASCII):
        # Not repeated: it may be the key itself.
        raise ValueError(
            "--api.key_env must be the name of an environment variable, e.g. "
            "OPENAI_API_KEY; the key itself belongs into that variable"
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
      journal: what has been paid for; every conversation goes there.
      suite: entry of `suites.SUITES`; None: the tasks of the configuration.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such suite or game.
    """
    return [
        _evaluation(changed, entry, api, journal)
        for changed, entry in suite_configs(config, suite, overrides)
    ]


def build_text_game(config: ConfigDict, spec: EnvSpec) -> TextGame:
    """A game in the configuration's words."""
    env, params = make_env(spec)
    budget = play_rules(config).budget
    prompt, rollout = config.prompt, config.rollout
    wording = build_wording(
        env,
        style=prompt.style,
        budget=budget,
        length_hint_words=prompt.length_hint_words,
        thinking=prompt.thinking,
    )
    return TextGame(
        spec.label or env.name,
        env,
        params,
        budget,
        wording,
        context=rollout.context,
        context_turns=rollout.context_turns,
        thinking=prompt.thinking,
        format_penalty=rollout.format_penalty,
    )


def _evaluation(
    config: ConfigDict, entry: EvalTask, api: ConfigDict, journal: Journal
) -> EvalTask:
    """An entry with its player."""
    game = build_text_game(config, entry.spec)
    played = describe(config, entry.spec)
    settings = _settings(config, api, played)
    evaluation = config.evaluation
    num_prompts, num_samples = evaluation.num_prompts, evaluation.num_samples
    prices = Prices(api.input_price, api.output_price, api.cached_input_price)

    def play() -> tuple[dict[str, float], list[dict[str, Any]]]:
        samples = [
            validation_keys(evaluation.seed, num_prompts, i) for i in range(num_samples)
        ]
        levels = game.levels(samples[0])
        # A prompt's samples are adjacent.
        noise = [
            keys.noise[prompt] for prompt in range(num_prompts) for keys in samples
        ]

        async def play_here():
            async with _endpoint(config, api) as endpoint:
                return await play_all(
                    game,
                    levels,
                    noise,
                    endpoint,
                    journal,
                    settings=settings,
                    prices=prices,
                    concurrency=api.concurrency,
                )

        records = asyncio.run(play_here())
        success = np.array([record["success"] for record in records])
        ceiling = make_ceiling(game.env, game.params, game.budget)(
            jax.tree.map(jnp.asarray, levels)
        )
        metrics = play_metrics(records) | token_metrics(records, prices)
        metrics |= summarize(success.reshape(num_prompts, -1), ceiling, pass_at(config))
        metrics |= {name: float(evaluation[name]) for name in VALIDATION_SETTINGS}
        metrics["held_out"] = float(game.env.holds_out_levels)
        return metrics, records

    spec = dataclasses.replace(entry.spec, label=game.name)
    return dataclasses.replace(entry, spec=spec, played=played, play=play)


def _settings(
    config: ConfigDict, api: ConfigDict, played: Mapping[str, Any]
) -> dict[str, Any]:
    """What conversations must have in common to be counted together."""
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
        concurrency=api.concurrency,
        timeout_seconds=api.timeout_seconds,
        max_retries=api.max_retries,
        retry_seconds=api.retry_seconds,
    )


_KEPT = (
    "They are kept, with the replies of the others: the same command goes on from there"
)
# Between two lines of progress.
_QUIET_SECONDS = 10.0


class Progress:
    """Lines on standard error while conversations go on."""

    def __init__(self, name: str, records: Sequence[Mapping[str, Any]], total: int):
        self._name, self._total = name, total
        self._done, self._first = len(records), len(records)
        self._successes = sum(record["success"] for record in records)
        self._read = self._written = 0
        self._began = self._said = time.monotonic()

    def replied(self, reply: ChatReply) -> None:
        """A reply was paid for."""
        self._read += reply.prompt_tokens or 0
        self._written += reply.reply_tokens or 0

    def finished(self, record: Mapping[str, Any], prices: Prices, retries: int) -> None:
        """A conversation has ended."""
        self._done += 1
        self._successes += record["success"]
        now = time.monotonic()
        if now - self._said < _QUIET_SECONDS and self._done < self._total:
            return
        self._said = now
        seconds = (now - self._began) / (self._done - self._first)
        left = round(seconds * (self._total - self._done))
        words = [
            f"{self._name}: {self._done}/{self._total} conversations",
            f"success {self._successes / self._done:.1%}",
            f"{self._read:,} + {self._written:,} tokens now",
        ]
        tokens = {"prompt_tokens": self._read, "sampled_tokens": self._written}
        cost = prices.cost(tokens | {"cached_tokens": 0})
        words += [f"cost up to {cost:.4g}"] if cost is not None else []
        words += [f"{retries} tries repeated"] if retries else []
        words.append(f"{left // 60}m{left % 60:02d}s left")
        print("  ".join(words), file=sys.stderr, flush=True)


async def play_all(
    game: TextGame,
    levels: EnvState,
    noise_keys: Sequence[Key[Array, ""]],
    endpoint: Endpoint,
    journal: Journal,
    *,
    settings: Mapping[str, Any],
    prices: Prices,
    concurrency: int,
) -> list[dict[str, Any]]:
    """Play every row that the journal has not.

    Args:
      levels: first states, one per prompt, on the host.
      noise_keys: one per row; the rows of a prompt are adjacent.
      settings: how it is played: conversations played in another way do not count.
      prices: for the progress.
      concurrency: conversations at a time.

    Returns:
      A record per row, in order.

    Raises:
      EndpointError: some could not be finished.
      ValueError: the journal holds the game under other settings.
    """
    journal.begin(game.name, settings)
    num_rows = len(noise_keys)
    per_level = num_rows // len(jax.tree.leaves(levels)[0])
    places = [(game.name, row) for row in range(num_rows)]
    kept = [journal.finished[place] for place in places if place in journal.finished]
    progress = Progress(game.name, kept, num_rows)
    waiting = iter([place for place in places if place not in journal.finished])
    failures: list[EndpointError] = []

    async def converse(place) -> None:
        row = place[1]
        known = journal.replies(place)

        async def ask(turn: int, messages: Sequence[Message]) -> ChatReply:
            if turn >= len(known):
                reply = await endpoint.reply(messages, row)
                journal.add_reply(place, reply)
                progress.replied(reply)
            return known[turn]

        level = jax.tree.map(lambda x: x[row // per_level], levels)
        record = await game.play(level, noise_keys[row], ask)
        label = {"environment": game.name, "row": row, "settings": settings}
        journal.add_conversation(place, label | record)
        progress.finished(record, prices, endpoint.num_retries)

    async def work() -> None:
        for place in waiting:
            if failures:
                return
            try:
                await converse(place)
            except EndpointError as failure:
                failures.append(failure)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    if failures:
        done = sum(place in journal.finished for place in places)
        told = f"{done} of {num_rows} conversations of {game.name} are finished"
        raise EndpointError(f"{failures[0]} ({told}{f'. {_KEPT}' if done else ''})")
    return [journal.finished[place] for place in places]
