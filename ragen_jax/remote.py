"""A model behind an HTTP endpoint, measured like a policy: same prompts, same games.

In: a configuration, `api` settings (`configs/endpoint.py`), the journal of what has
been paid for. Out: contests. No weights and no tokenizer are loaded: the endpoint is
sent the same text as chat messages.
"""

import asyncio
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

import envs
from ragen_jax.config import pass_at, play_budget, validate
from ragen_jax.contests import Contest, describe, suite_configs
from ragen_jax.endpoint.client import Endpoint, read_extra_body
from ragen_jax.endpoint.evaluation import play_all
from ragen_jax.endpoint.games import TextGame
from ragen_jax.endpoint.journal import Journal
from ragen_jax.endpoint.totals import Prices, play_metrics, token_metrics
from ragen_jax.games import constructor_arguments, env_params, make_ceiling
from ragen_jax.mix import Entry
from ragen_jax.program import VALIDATION_SETTINGS
from ragen_jax.rollout.device import validation_keys
from ragen_jax.success import summarize
from ragen_jax.text.prompts import build_wording

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


def endpoint_contests(
    config: ConfigDict,
    api: ConfigDict,
    journal: Journal,
    *,
    suite: str | None,
    overrides: Collection[str] = (),
) -> list[Contest]:
    """The contests of a model behind an endpoint.

    Args:
      config: see `prepare`.
      api: see `check_api`.
      journal: what has been paid for; every conversation goes there.
      suite: entry of `suites.SUITES`; None: the games of the configuration.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such suite or game.
    """
    return [
        _contest(own, entry, note, api, journal)
        for own, entry, note in suite_configs(config, suite, overrides)
    ]


def build_text_game(config: ConfigDict, entry: Entry) -> TextGame:
    """A game in the configuration's words."""
    env = envs.make(entry.name, **constructor_arguments(entry))
    budget = play_budget(config)
    prompt, rollout = config.prompt, config.rollout
    wording = build_wording(
        env,
        style=prompt.style,
        budget=budget,
        length_hint_words=prompt.length_hint_words,
        thinking=prompt.thinking,
    )
    return TextGame(
        entry.label or env.name,
        env,
        env_params(env, entry.params, path=entry.path),
        budget,
        wording,
        context=rollout.context,
        context_turns=rollout.context_turns,
        thinking=prompt.thinking,
        format_penalty=rollout.format_penalty,
    )


def _contest(
    config: ConfigDict, entry: Entry, note: str, api: ConfigDict, journal: Journal
) -> Contest:
    game = build_text_game(config, entry)
    played = describe(config, entry)
    settings = _settings(config, api, played)
    evaluation = config.evaluation
    num_prompts, num_samples = evaluation.num_prompts, evaluation.num_samples
    prices = Prices(api.input_price, api.output_price, api.cached_input_price)

    def play() -> tuple[dict[str, float], list[dict[str, Any]]]:
        samples = [
            validation_keys(evaluation.seed, num_prompts, i) for i in range(num_samples)
        ]
        levels = game.levels(samples[0].level)
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
        ceiling = make_ceiling(game)(jax.tree.map(jnp.asarray, levels))
        metrics = play_metrics(records) | token_metrics(records, prices)
        metrics |= summarize(success.reshape(num_prompts, -1), ceiling, pass_at(config))
        metrics |= {name: float(evaluation[name]) for name in VALIDATION_SETTINGS}
        return metrics, records

    return Contest(game.name, played, note, play)


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
