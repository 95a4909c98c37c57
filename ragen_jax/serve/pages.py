"""What the server says about itself over HTTP: JSON documents and a page for people.

In: a game. Out: its description, the schemas of what is exchanged, the list of paths.
"""

import html
from collections.abc import Callable
from typing import Any

from envs.base import SPLITS
from ragen_jax import __version__
from ragen_jax.serve import protocol
from ragen_jax.serve.sessions import Sessions


def _object(
    properties: dict[str, Any], required: list[str], title: str
) -> dict[str, Any]:
    return {
        "type": "object",
        "title": title,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _about(kind: str | list[str], description: str) -> dict[str, Any]:
    return {"type": kind, "description": description}


ACTION = _object(
    {
        "answer": _about(
            "string",
            "The answer of a reply: the text between its tags, or the whole reply with "
            "<answer> and </answer>.",
        ),
        "metadata": _about("object", "Ignored."),
    },
    ["answer"],
    "Action",
)
_SEEN = {
    "text": _about(
        "string",
        "All that a player needs who knows nothing else; after a reset with the rules.",
    ),
    "shown": _about("string", "What the game shows, without rules and limits."),
    "success": _about("boolean", "The goal has been reached."),
    "valid": _about("boolean", "The game could read the last answer."),
    "truncated": _about("boolean", "A limit has ended the episode, not the game."),
    "done": _about("boolean", "The episode is over."),
}
_IMAGES = {
    "type": "array",
    "items": {"type": "string"},
    "description": "The board, a PNG file in base64.",
}


def _observation(
    reward: dict[str, Any], title: str, has_images: bool
) -> dict[str, Any]:
    seen = _SEEN | {"reward": reward} | ({"images": _IMAGES} if has_images else {})
    return _object(seen, [*seen], title)


_STATE = {
    "episode_id": _about(["string", "null"], "Of the request, or made by the server."),
    "step_count": _about("integer", "Answers in this episode."),
    "seed": _about(["integer", "null"], "Makes the same episode again."),
    "split": {"enum": [*SPLITS, None], "description": "Part of the game's problems."},
    "task": _about(["integer", "null"], "Number of the problem, if one was asked for."),
    "done": _about("boolean", "The episode is over."),
}
STATE = _object(_STATE, [*_STATE], "State")
RESET = _object(
    {
        "seed": {"type": "integer", "minimum": 0, "maximum": protocol.MAX_SEED},
        "episode_id": {"type": "string", "maxLength": protocol.MAX_EPISODE_ID},
        "split": {"enum": [*SPLITS]},
        "task": {"type": "integer", "minimum": 0},
    },
    [],
    "Reset",
) | {"additionalProperties": True}


def metadata(sessions: Sessions) -> dict[str, Any]:
    """Name, rules and version, and how many clients can play."""
    game = sessions.game
    return {
        "name": game.name,
        "description": game.instruction,
        "version": __version__,
        "author": "ragen_jax",
        "readme_content": None,
        "documentation_url": None,
        "max_sessions": sessions.limit,
    }


def schema(sessions: Sessions) -> dict[str, Any]:
    """JSON schemas of actions, observations and states, alike for all games."""
    has_images = sessions.game.shows_pictures
    reward = _about("number", "Of the last answer alone.")
    return {
        "action": ACTION,
        "observation": _observation(reward, "Observation", has_images),
        "reset_observation": _observation(
            {"type": "null"}, "ResetObservation", has_images
        ),
        "state": STATE,
    }


def openapi(sessions: Sessions) -> dict[str, Any]:
    """The paths; `info.version` is that of OpenEnv's interface over HTTP."""
    game = sessions.game
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    answer = {"200": {"description": "OK", **body}}

    def entry(summary: str, sent: dict[str, Any] | None = None) -> dict[str, Any]:
        request = {} if sent is None else {"requestBody": _body(sent)}
        return {"summary": summary, "responses": answer, **request}

    step = _object({"action": ACTION}, ["action"], "Step")
    step["additionalProperties"] = True
    return {
        "openapi": "3.1.0",
        "info": {
            "title": game.name,
            "version": "1.0.0",
            "description": game.instruction,
        },
        "paths": {
            "/health": {"get": entry("Whether the server runs")},
            "/metadata": {"get": entry("Name and rules")},
            "/schema": {"get": entry("Schemas of action, observation and state")},
            "/state": {"get": entry("State of an episode that has not begun")},
            "/reset": {"post": entry("An episode's beginning, then forgotten", RESET)},
            "/step": {"post": entry("An episode's first step, then forgotten", step)},
            "/mcp": {"post": entry("JSON-RPC; there are no tools", {"type": "object"})},
        },
    }


def _body(sent: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": sent}}}


# Path -> document about a server.
DOCUMENTS: dict[str, Callable[[Sessions], dict[str, Any]]] = {
    "/health": lambda sessions: {"status": "healthy"},
    "/metadata": metadata,
    "/schema": schema,
    "/openapi.json": openapi,
}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }}
pre {{ background: #f3f3f3; padding: .8rem; overflow-x: auto; white-space: pre-wrap }}
</style>
<h1>{name}</h1>
<p>A game of ragen_jax, served over OpenEnv's protocol. {num_open} of {limit} sessions
are in use.</p>
<h2>Rules</h2>
<pre>{instruction}</pre>
<h2>Connect</h2>
<p>Train on it:</p>
<pre>ragen-jax train --config=world --config.env.host=openenv:ws://{address} \\
    --workdir=runs/there</pre>
<p>Play it with OpenEnv's client (<code>pip install openenv</code>):</p>
<pre>from openenv import GenericEnvClient

with GenericEnvClient(base_url="http://{address}").sync() as game:
    print(game.reset(seed=0).observation["text"])
    print(game.step({{"answer": "..."}}))</pre>
<p>Or send JSON to <code>ws://{address}/ws</code>; a session lasts as long as its
connection:</p>
<pre>{{"type": "reset", "data": {{"seed": 0, "split": "training"}}}}
{{"type": "step", "data": {{"answer": "..."}}}}
{{"type": "state"}}
{{"type": "close"}}</pre>
<p>An observation has the <code>text</code> for a player who knows nothing else, what
the game has <code>shown</code> without the rules, and whether the last answer was
<code>valid</code>. POST /reset and /step forget the episode at once.</p>
<p><a href="/metadata">/metadata</a> <a href="/schema">/schema</a>
<a href="/health">/health</a> <a href="/openapi.json">/openapi.json</a></p>
</html>
"""


def landing_page(sessions: Sessions, address: str) -> str:
    """A page that says how to connect and what is played."""
    game = sessions.game
    return _PAGE.format(
        name=html.escape(game.name),
        instruction=html.escape(game.instruction),
        address=html.escape(address),
        num_open=sessions.num_open,
        limit=sessions.limit,
    )
