"""Builds tasks in text, without a tokenizer.

In: a configuration and a specification. Out: a `Task` and its game in chat messages,
for models behind an API and for sessions of a server.
"""

from ml_collections import ConfigDict

from ragen_jax.rollout.host.text import Chat, ChatGame
from ragen_jax.tasks.build import new_task, play_rules
from ragen_jax.tasks.specs import EnvSpec
from ragen_jax.tasks.task import AgentTask, Task
from ragen_jax.text.context import count_past
from ragen_jax.text.pictures import picture_of, show_boards
from ragen_jax.text.prompts import build_wording, call_wording


def build_chat(config: ConfigDict, spec: EnvSpec) -> tuple[Task, ChatGame]:
    """A task without tokens, and its game in chat messages.

    Raises:
      ValueError: the environment or its arguments cannot be used, or its text has no
        board to be shown as a picture.
    """
    task = new_task(spec, play_rules(config))
    prompt, rollout, budget = config.prompt, config.rollout, task.rules.budget
    wording, env = call_wording(task.env), task.env
    if not isinstance(task, AgentTask):
        env = show_boards(env, prompt.observation, None)
        wording = build_wording(
            env,
            style=prompt.style,
            budget=budget,
            length_hint_words=prompt.length_hint_words,
            thinking=prompt.thinking,
        )
    num_past = count_past(rollout.context, rollout.context_turns, budget.max_turns)
    drawn = picture_of(task.env.template) if prompt.observation != "text" else None
    chat = Chat(
        wording, rollout.context, num_past, prompt.thinking, env.template, drawn
    )
    return task, task.make_chat(chat)
