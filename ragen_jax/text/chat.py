"""Chat markup of Qwen-2.5 (ChatML), cut where the turns of a dialogue meet.

In: the content of messages, as templates. Out: the same with markup around it. The ids
of a dialogue are never made from its text again, so the markup is cut at the two places
where model and template alternate:

    opening    system message, first user message, header of the assistant's message
               with a forced `<think>`, or `<answer>` where no thought is asked for
    (reply)    sampled: the thought, the answer, the end-of-turn token
    following  the end-of-turn token if the reply lacks it, the rest of the assistant's
               message, the next user message, header of the next reply

The forced tag is part of the template, not of the reply.

Source: the chat template shipped with Qwen2.5-Instruct.
"""

from envs.templates import Choice, Template

START = "<|im_start|>"
END = "<|im_end|>"
SYSTEM_HEADER = f"{START}system\n"
USER_HEADER = f"{START}user\n"
REPLY_HEADER = f"{START}assistant\n"
# Template of a dialogue in messages. A reply may come with or without the forced tag,
# since text that was generated after the tag lacks it. Thoughts of earlier turns stay.
_JINJA = """\
{%- for message in messages -%}
    {%- set content = message['content'] -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' and not content.startswith('TAG') -%}
        {{- 'TAG' -}}
    {%- endif -%}
    {{- content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\nTAG' -}}
{%- endif -%}
"""


def beginning(system: Template) -> Template:
    """The system message and the header of the user's message."""
    header, end = Template((SYSTEM_HEADER,)), Template((f"{END}\n", USER_HEADER))
    return header + system + end


def forced_prefix(thinking: bool) -> str:
    """The tag that the header of every reply ends with."""
    return "<think>" if thinking else "<answer>"


def jinja_template(prefix: str) -> str:
    """This markup as a chat template of `transformers`: chat messages to their text.

    Args:
      prefix: the tag that the header of every reply ends with.
    """
    return _JINJA.replace("TAG", prefix)


def request(user: Template, prefix: str) -> Template:
    """The rest of the user's message and the header of the reply."""
    return user + Template((f"{END}\n", REPLY_HEADER + prefix))


def rest_of_reply() -> Template:
    """From the end of a reply to the header of the next user message.

    Field `was_cut`: 1 where the last reply does not end with the end-of-turn token
    (the length limit cut it, or another stop token ended it), else 0.
    """
    return Template((Choice("was_cut", ("", END)), "\n", USER_HEADER))


def opening(system: Template, user: Template, prefix: str) -> Template:
    """Everything before the first reply."""
    return beginning(system) + request(user, prefix)


def following(user: Template, prefix: str) -> Template:
    """Everything between two replies; has the field of `rest_of_reply`."""
    return rest_of_reply() + request(user, prefix)
