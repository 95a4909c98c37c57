"""Calls of a chat API as tokens: whole conversations, in the model's own markup.

In: the messages and tools of a call, and what the model sampled earlier in the episode.
Out: the ids that the model reads before its reply. The markup is that of the
checkpoint's chat template; texts of messages are encoded as letters like any others, so
that no message can forge a turn. A reply that the model sampled is written by its
recorded ids: nothing sampled is tokenized again.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np

from ragen_jax.text import chat
from ragen_jax.text.tokenizer import Tokenizer

# A text stands in the rendered template as its number between two characters of no
# language. Texts of users that have them are marked, too, and never read for marks.
_MARK = re.compile("\ue000([0-9]+)\ue001")

# For checkpoints whose template knows no tools, or that have none.
_TEMPLATE = """\
{{- 'BEGIN' -}}
{%- if tools and messages[0]['role'] != 'system' -%}
    {{- 'SYSTEM' + 'TOOLS' -}}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor -%}
    {{- 'HOW' + 'END' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message['role'] == 'tool' -%}
        {{- 'USER' + '<tool_response>\\n' + message['content'] -}}
        {{- '\\n</tool_response>' -}}
    {%- else -%}
        {{- 'BEFORE' + message['role'] + 'AFTER' + message['content'] -}}
        {%- if loop.first and tools and message['role'] == 'system' -%}
            {{- '\\n\\n' + 'TOOLS' -}}
            {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor -%}
            {{- 'HOW' -}}
        {%- endif -%}
        {%- for call in message['tool_calls'] or [] -%}
            {{- '\\n' if message['content'] or not loop.first -}}
            {{- '<tool_call>\\n{"name": ' + call['function']['name'] | tojson -}}
            {{- ', "arguments": ' + call['function']['arguments'] | tojson -}}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- 'END' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'REPLY' -}}
{%- endif -%}
"""
_TOOLS = "Tools, a JSON schema a line:"
_HOW = (
    "\nTo use one, write\n<tool_call>\n"
    '{"name": its name, "arguments": an object}\n</tool_call>'
)


@dataclasses.dataclass(frozen=True)
class SampledReply:
    """A reply as it was sampled, and as the caller got it.

    Attributes:
      prompt: ids that were read before it.
      ids: that were sampled.
      content, tool_calls: of the message that was returned.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    content: str
    tool_calls: Sequence[Mapping[str, Any]] = ()


class CallWriter:
    """Writes calls as ids, in the chat template of a tokenizer.

    Attributes:
      template: the checkpoint's, if it knows tools, or the project's own; Jinja.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Compiles the template.

        Raises:
          ValueError: the tokenizer has no known markup, or a template that cannot be
            read.
        """
        self._tokenizer, self._end = tokenizer, tokenizer.id_of(tokenizer.markup.end)
        theirs = tokenizer.chat_template
        knows_tools = theirs is not None and "tools" in theirs
        self.template = theirs if knows_tools else call_template(tokenizer.markup)
        try:
            self._template = _environment().from_string(self.template)
        except jinja2.TemplateError as error:
            raise ValueError(
                f"the chat template of {tokenizer.folder} cannot be read: {error}; use "
                "that of the model's publisher"
            ) from error

    @property
    def tool_format(self) -> str:
        """How the model writes calls of tools: a key of `agent.tools.TOOL_FORMATS`."""
        return "llama3" if self._tokenizer.markup is chat.LLAMA3 else "hermes"

    def ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        sampled: Sequence[SampledReply] = (),
    ) -> list[int]:
        """Ids up to where the reply begins.

        Args:
          messages: normalised, as `host_games.agent.calls.ChatCall` has them.
          tools: of the call.
          sampled: the episode's replies so far.

        Raises:
          ValueError: the template refuses the messages.
        """
        texts: list[str | SampledReply] = []

        def mark(text: str | SampledReply) -> str:
            texts.append(text)
            return f"\ue000{len(texts) - 1}\ue001"

        shown = [_marked(message, sampled, mark) for message in messages]
        try:
            rendered = self._template.render(
                messages=shown,
                tools=list(tools) or None,
                add_generation_prompt=True,
                written=lambda x, **how: mark(json.dumps(x, ensure_ascii=False, **how)),
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the model's chat template fails: {error}") from None
        ids: list[int] = []
        # Alternately markup and the number of a text.
        for i, piece in enumerate(_MARK.split(rendered)):
            if i % 2 == 0:
                self._add_markup(ids, piece)
            else:
                self._add_text(ids, texts[int(piece)], sampled)
        return ids

    @functools.cached_property
    def _special_tokens(self) -> dict[str, str]:
        markup = self._tokenizer.markup
        return {"bos_token": markup.begin, "eos_token": markup.end}

    def _add_markup(self, ids: list[int], piece: str) -> None:
        added = self._tokenizer.encode(piece)
        # A reply that ended by itself has the token that ends its turn.
        if ids and added and ids[-1] == added[0] == self._end:
            added = added[1:]
        ids += added

    def _add_text(
        self, ids: list[int], text: str | SampledReply, sampled: Sequence[SampledReply]
    ) -> None:
        if isinstance(text, str):
            ids += self._tokenizer.plain.encode(text, add_special_tokens=False).ids
            return
        # Of replies with the same text, that to the same dialogue.
        same = [x for x in sampled if _is_same(x, text)]
        here = [x for x in same if list(x.prompt) == ids]
        ids += (here or same)[-1].ids


def call_template(markup: chat.Markup) -> str:
    """Template of calls, as Jinja: the project's own, for models without one."""
    before, after = markup.header.split("{}")
    words = {
        "BEGIN": markup.begin,
        "SYSTEM": markup.header_of("system"),
        "USER": markup.header_of("user"),
        "REPLY": markup.header_of("assistant"),
        "BEFORE": before,
        "AFTER": after,
        "END": markup.end + markup.gap,
        "TOOLS": _TOOLS,
        "HOW": _HOW,
    }
    text = _TEMPLATE
    for name, word in words.items():
        text = text.replace(f"'{name}'", "'{}'".format(word.replace("\n", "\\n")))
    return text


def state_hash(ids: Sequence[int]) -> np.ndarray:
    """uint32[2] of a prompt: equal for equal ones."""
    digest = hashlib.sha256(np.asarray(ids, np.int32).tobytes()).digest()
    return np.frombuffer(digest[:8], np.uint32)


def _environment() -> jinja2.Environment:
    """The environment that chat templates are written for."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )

    def refuse(reason: str) -> None:
        raise jinja2.TemplateError(reason)

    # JSON of tools and of arguments holds texts of users: it is marked, too.
    @jinja2.pass_context
    def tojson(context: jinja2.runtime.Context, x: object, **how: object) -> str:
        return context["written"](x, **how)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    return environment


def _marked(message: Mapping[str, Any], sampled: Sequence[SampledReply], mark) -> dict:
    """A message whose texts are marks, a reply as one text."""
    shown, calls = dict(message), message.get("tool_calls") or ()
    if message["role"] == "assistant":
        reply = SampledReply((), (), message["content"], calls)
        if any(_is_same(x, reply) for x in sampled):
            shown.pop("tool_calls", None)
            return shown | {"content": mark(reply)}
    if calls:
        shown["tool_calls"] = [_with_object(call) for call in calls]
    content = message["content"]
    return shown | {"content": mark(content) if content else ""}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call with its arguments as an object, as templates take them."""
    function = dict(call["function"])
    arguments = _parsed(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _is_same(x: SampledReply, y: SampledReply) -> bool:
    return x.content == y.content and _names(x.tool_calls) == _names(y.tool_calls)


def _names(calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    functions = [call["function"] for call in calls]
    return [(f["name"], _parsed(f.get("arguments"))) for f in functions]
