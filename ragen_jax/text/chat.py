"""Chat markup of Qwen-2.5 (ChatML), cut where the turns of a dialogue meet.

In: the content of messages, as templates. Out: the same with their markup around them.
The ids of a dialogue are never made from its text again, so the markup is cut at the
two places where the model and the template take turns:

    opening    system message, first user message, header of the assistant's message
               with a forced `<think>`
    (reply)    sampled: the thought, the answer, the end-of-turn token
    following  the end-of-turn token if the reply lacks it, the rest of the assistant's
               message, the next user message, header of the next reply

The forced `<think>` is part of the template, not of the reply.

Source: the chat template shipped with Qwen2.5-Instruct.
"""

from envs.templates import Choice, Template

START = "<|im_start|>"
END = "<|im_end|>"
# Every reply starts with a thought: the header ends with the opening tag.
FORCED_PREFIX = "<think>"
REPLY_HEADER = f"{START}assistant\n{FORCED_PREFIX}"


def message(role: str, content: Template) -> Template:
    """A whole message: header, content, end of turn."""
    header = Template((f"{START}{role}\n",))
    return header + content + Template((f"{END}\n",))


def opening(system: Template, user: Template) -> Template:
    """Everything before the first reply."""
    reply_header = Template((REPLY_HEADER,))
    return message("system", system) + message("user", user) + reply_header


def following(user: Template) -> Template:
    """Everything between two replies.

    Field `was_cut`: 1 where the last reply does not end with the end-of-turn token
    (the length limit cut it, or another stop token ended it), else 0.
    """
    rest_of_reply = Template((Choice("was_cut", ("", END)), "\n"))
    return rest_of_reply + message("user", user) + Template((REPLY_HEADER,))
