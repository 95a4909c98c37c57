"""Chat markup of a model, cut where the turns of a dialogue meet.

In: the content of messages, as templates. Out: the same with markup around it. The ids
of a dialogue are never made from its text again, so the markup is cut at the two places
where model and template alternate:

    opening    system message, first user message, header of the assistant's message
               with a forced `<think>`, or `<answer>` where no thought is asked for
    (reply)    sampled: the thought, the answer, the end-of-turn token
    following  the end-of-turn token if the reply lacks it, the rest of the assistant's
               message, the next user message, header of the next reply

The forced tag is part of the template, not of the reply.
"""

import dataclasses
from collections.abc import Callable

from envs.templates import Choice, Template


@dataclasses.dataclass(frozen=True)
class Markup:
    """Words around the messages of a dialogue.

    Attributes:
      begin: before the first message.
      header: before the content of a message, with `{}` for its role.
      end: the end-of-turn token.
      gap: between the end of a message and the next header.
      tokens: special tokens by which a tokenizer is known to have this markup.
    """

    begin: str
    header: str
    end: str
    gap: str
    tokens: tuple[str, ...]

    def header_of(self, role: str) -> str:
        """The header of "system", "user" or "assistant"."""
        return self.header.format(role)


# Qwen-2.5, Qwen-3, SmolLM2. Source: the template shipped with Qwen2.5-Instruct.
CHATML = Markup(
    begin="",
    header="<|im_start|>{}\n",
    end="<|im_end|>",
    gap="\n",
    tokens=("<|im_start|>", "<|im_end|>"),
)
# Source: the template shipped with Llama-3-Instruct. Those of 3.1 and 3.2 also write a
# date into the system message, which is left out: a run must not depend on the day.
LLAMA3 = Markup(
    begin="<|begin_of_text|>",
    header="<|start_header_id|>{}<|end_header_id|>\n\n",
    end="<|eot_id|>",
    gap="",
    tokens=(
        *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|eot_id|>",
    ),
)
MARKUPS = (CHATML, LLAMA3)
# Those of ChatML, for texts without a model.
START, END = CHATML.tokens
# Template of a dialogue in messages. A reply may come with or without the forced tag,
# since text that was generated after the tag lacks it. Thoughts of earlier turns stay.
_JINJA = """\
{%- for message in messages -%}
    {%- set content = message['content'] -%}
    {{- BEFORE + message['role'] + AFTER -}}
    {%- if message['role'] == 'assistant' and not content.startswith('TAG') -%}
        {{- 'TAG' -}}
    {%- endif -%}
    {{- content + END -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- REPLY -}}
{%- endif -%}
"""


def markup_of(has_token: Callable[[str], bool], where: object) -> Markup:
    """The markup whose special tokens a vocabulary has.

    Raises:
      ValueError: it has none's; the message names `where`.
    """
    for markup in MARKUPS:
        if all(map(has_token, markup.tokens)):
            return markup
    known = " or ".join(", ".join(markup.tokens) for markup in MARKUPS)
    raise ValueError(
        f"the tokenizer in {where} has no chat markup that is known ({known}); use an "
        "Instruct model whose markup is ChatML's (Qwen, SmolLM2) or Llama 3's"
    )


def beginning(system: Template, markup: Markup = CHATML) -> Template:
    """The system message and the header of the user's message."""
    header = Template((markup.begin + markup.header_of("system"),))
    return header + system + _next("user", "", markup)


def forced_prefix(thinking: bool) -> str:
    """The tag that the header of every reply ends with."""
    return "<think>" if thinking else "<answer>"


def jinja_template(prefix: str, markup: Markup = CHATML) -> str:
    """A markup as a chat template of `transformers`: chat messages to their text.

    Args:
      prefix: the tag that the header of every reply ends with.
      markup: of the model.
    """
    before, after = markup.header.split("{}")
    words = {
        "BEFORE": before,
        "AFTER": after,
        "END": markup.end + markup.gap,
        "REPLY": markup.header_of("assistant") + prefix,
    }
    text = _JINJA.replace("TAG", prefix)
    for name, word in words.items():
        text = text.replace(f" {name} ", " '{}' ".format(word.replace("\n", "\\n")))
    return f"{{{{- '{markup.begin}' -}}}}\n{text}" if markup.begin else text


def request(user: Template, prefix: str, markup: Markup = CHATML) -> Template:
    """The rest of the user's message and the header of the reply."""
    return user + _next("assistant", prefix, markup)


def rest_of_reply(markup: Markup = CHATML) -> Template:
    """From the end of a reply to the header of the next user message.

    Field `was_cut`: 1 where the last reply does not end with the end-of-turn token
    (the length limit cut it, or another stop token or `</answer>` ended it), else 0.
    """
    gap = (markup.gap,) if markup.gap else ()
    end = Choice("was_cut", ("", markup.end))
    return Template((end, *gap, markup.header_of("user")))


def opening(
    system: Template, user: Template, prefix: str, markup: Markup = CHATML
) -> Template:
    """Everything before the first reply."""
    return beginning(system, markup) + request(user, prefix, markup)


def following(user: Template, prefix: str, markup: Markup = CHATML) -> Template:
    """Everything between two replies; has the field of `rest_of_reply`."""
    return rest_of_reply(markup) + request(user, prefix, markup)


def _next(role: str, prefix: str, markup: Markup) -> Template:
    """The end of a message and the header of the next."""
    return Template((markup.end + markup.gap, markup.header_of(role) + prefix))
