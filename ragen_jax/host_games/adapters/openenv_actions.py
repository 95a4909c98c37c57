"""Text to actions and observations to text, for any OpenEnv server.

In: a reply and the schema of actions; the data of an observation. Out: the action; the
text that a model reads. Knows no connection.

A reply that is a JSON object is the action. Any other is the value of the one field
that actions must have: `answer`, `message`, `code` or any other name. This rule
and the order of `TEXT_FIELDS` are those of verifiers, after the two of
`ragen_jax.serve`.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ragen_jax.host_games.base import MAX_REWARD
from ragen_jax.host_games.common.files import parse_json
from ragen_jax.host_games.common.images import read_png_base64

# Where the text of an observation is, the first that is there.
TEXT_FIELDS = (
    "shown",
    "text",
    "message",
    "messages",
    "question",
    "prompt",
    "content",
    "stdout",
)
# Servers bound their messages; a longer action is invalid.
MAX_ACTION_BYTES = 500_000


class Unreadable(ValueError):
    """A reply is not an action; the message says so in a few words."""


@dataclasses.dataclass(frozen=True)
class ActionForm:
    """How replies become actions.

    Attributes:
      field: that a plain reply is the value of; None: replies must be JSON objects.
      kind: JSON type of its values.
      takes_objects: a reply that is a JSON object is a whole action.
      names: of an action's fields, for the player.
    """

    field: str | None
    kind: str = "string"
    takes_objects: bool = True
    names: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """How to reply, where it is not plain text; "" where it is."""
        if self.field is None:
            return f"Reply with a JSON object with {', '.join(self.names)}."
        return _KINDS.get(self.kind, ("",))[0]

    def read(self, reply: str) -> dict[str, Any]:
        """The action of a reply.

        Raises:
          Unreadable: it is not one.
        """
        # Lone surrogates cannot be sent.
        reply = reply.encode("utf-8", "replace").decode()
        action = self._read(reply)
        if len(json.dumps(action)) > MAX_ACTION_BYTES:
            raise Unreadable("The answer is too long.")
        return action

    def _read(self, reply: str) -> dict[str, Any]:
        if self.takes_objects and isinstance(value := _parse(reply), dict):
            return value
        if self.field is None:
            raise Unreadable(self.hint)
        if self.kind not in _KINDS:
            return {self.field: reply}
        hint, types = _KINDS[self.kind]
        value = _parse(reply.strip().lower())
        if type(value) not in types:
            raise Unreadable(hint)
        return {self.field: value}


# JSON type -> how to reply, types of Python that have it.
_KINDS = {
    "integer": ("Reply with a whole number.", (int,)),
    "number": ("Reply with a number.", (int, float)),
    "boolean": ("Reply with true or false.", (bool,)),
}


def _parse(text: str) -> Any:
    try:
        return parse_json(text, allow_nan=False)
    except ValueError:
        return None


def read_form(schema: Any, field: str | None) -> ActionForm:
    """How replies become actions of a schema.

    Args:
      schema: of actions, as `/schema` has it.
      field: of the user's choice, where every reply goes as it is; None: found here.

    Raises:
      ValueError: actions have no such field.
    """
    schema = schema if isinstance(schema, Mapping) else {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    names = tuple(str(name) for name in properties if name != "metadata")
    if field is not None:
        if names and field not in names:
            raise ValueError(
                f"field is {field!r}, but the server's actions have "
                f"{', '.join(names)}; use one of them, or leave field out"
            )
        return ActionForm(field, _kind(properties.get(field)), False, names)
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    if len(required) == 1 and isinstance(required[0], str):
        return ActionForm(required[0], _kind(properties.get(required[0])), True, names)
    return ActionForm(None, names=names)


def _kind(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind if isinstance(kind, str) else "string"


def find_text(observation: Any, field: str | None) -> str:
    """The text of an observation.

    Args:
      observation: as the server sent it.
      field: that has it; None: the first of `TEXT_FIELDS`.

    Raises:
      ValueError: there is no such field.
    """
    if isinstance(observation, str) and field is None:
        return observation
    if not isinstance(observation, Mapping):
        raise ValueError(f"the observation is {json.dumps(observation)[:80]}")
    fields = TEXT_FIELDS if field is None else (field,)
    for name in fields:
        if observation.get(name) is not None:
            return _as_text(observation[name])
    raise ValueError(
        f"the observation has {', '.join(map(str, observation)) or 'no fields'}, none "
        f"of {', '.join(fields)}; name the one with the text by observation_field"
    )


def find_images(observation: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """The images of an observation: its `images`, PNG files in base64.

    Raises:
      ValueError: they are not.
    """
    listed = observation["images"]
    if not isinstance(listed, list):
        raise ValueError(f"images are {json.dumps(listed)[:80]}, not a list")
    return tuple(map(read_png_base64, listed))


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        parts = [v.get("content", v) if isinstance(v, Mapping) else v for v in value]
        return "\n".join(_as_text(part) for part in parts)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_flag(fields: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A field that is true or false; `default` where it is missing or null.

    Raises:
      ValueError: it is neither true nor false, nor 1 or 0.
    """
    value = fields.get(name)
    if value is None:
        return default
    if value not in (True, False):
        raise ValueError(f"{name} is {json.dumps(value)[:80]}, neither true nor false")
    return bool(value)


def read_reward(value: Any) -> float:
    """The reward; a missing one is 0.

    Raises:
      ValueError: it is not a finite number up to `MAX_REWARD`.
    """
    if value is None:
        return 0.0
    # A whole number may be larger than any float.
    if not isinstance(value, int | float) or not abs(value) <= MAX_REWARD:
        raise ValueError(
            f"the reward is {json.dumps(value)[:80]}, not a finite number up to "
            f"{MAX_REWARD:g}"
        )
    return float(value)
