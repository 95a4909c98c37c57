"""Dialogue of a game, ready for the device: its messages and the parser of replies.

In: an environment, a tokenizer and the settings of the prompt. Out: a `Dialogue`, one
pytree with the compiled messages and the parser. It has no state: the rollout records
the messages and replies of an episode.
"""

import dataclasses

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from envs.base import PlayBudget, TextGame
from envs.templates import Template
from ragen_jax.text.answers import AnswerParser, build_parser
from ragen_jax.text.context import WindowTemplates, build_windows
from ragen_jax.text.endings import TextEnd, find_answer_end
from ragen_jax.text.pictures import (
    BEGIN,
    END,
    HostPicture,
    Picture,
    picture_of,
    show_boards,
)
from ragen_jax.text.prompts import Prompts, Wording, build_wording, cut_messages
from ragen_jax.text.statements import FactReader
from ragen_jax.text.token_templates import DeviceTemplate, compile_template
from ragen_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class PromptOptions:
    """Options of the text, the section `prompt` of the configuration.

    Attributes:
      style: entry of `prompts.PROMPT_STYLES`.
      tokenization: entry of `token_templates.TOKENIZATIONS`.
      length_hint_words: longest reply asked for.
      thinking: a reply is a thought and an answer; False: an answer alone.
      observation: entry of `pictures.OBSERVATIONS`.
    """

    style: str
    tokenization: str
    length_hint_words: int
    thinking: bool = True
    observation: str = "text"


@struct.dataclass
class Dialogue:
    """Messages and parser of one game; a pytree, to be passed to jitted functions.

    Attributes:
      opening, following: the messages (see `ragen_jax.text.prompts`).
      parser: reads the replies.
      stop_tokens: ids that end a reply: the end-of-turn token and others that the
        checkpoint names.
      prompts: the same messages as text, for the host.
      stop_token: id of the end-of-turn token, the one the template appends to a reply
        that was cut.
      max_trajectory_tokens: `T`, most tokens of a dialogue.
      windows: templates of what the model reads before a reply; None if it reads the
        whole dialogue (see `ragen_jax.text.context`).
      context_tokens: the most tokens that an agent's dialogue may have, whose messages
        are not made here; None: those of `windows`, or of a dialogue.
      facts: reads which cells thoughts name; None if no bonus needs it.
      text_end: finds the text that ends a reply; None: stop tokens alone do.
      picture: the board that messages show as a picture, or what an image of a host
        game is in tokens; None: all is text.
    """

    opening: DeviceTemplate
    following: DeviceTemplate
    parser: AnswerParser
    stop_tokens: Int[Array, " n"]
    prompts: Prompts = struct.field(pytree_node=False)
    stop_token: int = struct.field(pytree_node=False)
    max_trajectory_tokens: int = struct.field(pytree_node=False)
    windows: WindowTemplates | None
    context_tokens: int | None = struct.field(pytree_node=False, default=None)
    facts: FactReader | None = None
    text_end: TextEnd | None = None
    picture: Picture | HostPicture | None = struct.field(
        pytree_node=False, default=None
    )

    @property
    def thinking(self) -> bool:
        """A reply is a thought and an answer; False: an answer alone."""
        return self.parser.thinking

    @property
    def max_window_tokens(self) -> int:
        """The most tokens the model sees at once, its reply included: `W`, or `T`."""
        if self.context_tokens is not None:
            return self.context_tokens
        if self.windows is None:
            return self.max_trajectory_tokens
        return self.windows.max_tokens


@struct.dataclass
class Endings:
    """What ends a reply, of dialogues that are not made here.

    Attributes:
      stop_tokens, text_end: see `Dialogue`.
    """

    stop_tokens: Int[Array, " n"]
    text_end: TextEnd | None = None


def find_endings(tokenizer: Tokenizer) -> Endings:
    """What ends a reply of the tokenizer's model.

    Raises:
      ValueError: see `build_dialogue`.
    """
    _, stop_tokens = _stop_tokens(tokenizer)
    return Endings(jax.device_put(np.asarray(stop_tokens, np.int32)))


def build_dialogue(
    env: TextGame,
    tokenizer: Tokenizer,
    *,
    budget: PlayBudget,
    max_reply_tokens: int,
    context: str = "full",
    context_turns: int | None = None,
    stop_at_answer: bool = False,
    picture_kind: int = 0,
    **prompt: str | int | bool,
) -> Dialogue:
    """Builds the dialogue of a game: wording, token tables, sizes.

    Args:
      env: the game.
      tokenizer: the model's.
      budget: turns and actions of an episode.
      max_reply_tokens: `R`, the stop token included.
      context: how much of the dialogue the model sees, an entry of `context.CONTEXTS`.
      context_turns: number of turns it sees, the one to be answered included; None for
        "full".
      stop_at_answer: `</answer>` ends a reply, like a stop token.
      picture_kind: see `pictures.Picture`.
      prompt: fields of `PromptOptions`.

    Raises:
      ValueError: an unknown style, tokenization, context or observation; turns that do
        not go with the context; pictures of a game without a board; a text that the
        tokenizer cannot carry in pieces; a tokenizer without a known chat markup, or
        without tokens around pictures; or a checkpoint whose replies do not end with
        the end-of-turn token.
    """
    options = PromptOptions(**prompt)
    shown = show_boards(env, options.observation, picture_kind)
    wording = _wording(shown, tokenizer, budget, options)
    prompts = cut_messages(wording)
    stop_token, stop_tokens = _stop_tokens(tokenizer)
    ids = {}
    opening, following = (
        compile_template(message, tokenizer, options.tokenization, known_ids=ids)
        for message in (prompts.opening, prompts.following)
    )
    windows = build_windows(
        wording,
        tokenizer,
        tokenization=options.tokenization,
        context=context,
        context_turns=context_turns,
        max_turns=budget.max_turns,
        max_reply_tokens=max_reply_tokens,
        known_ids=ids,
    )
    between = (budget.max_turns - 1) * following.max_tokens
    replies = budget.max_turns * max_reply_tokens
    return Dialogue(
        opening=opening,
        following=following,
        parser=_parser(env, tokenizer, budget, max_reply_tokens, options.thinking),
        stop_tokens=jax.device_put(np.asarray(stop_tokens, np.int32)),
        prompts=prompts,
        stop_token=stop_token,
        max_trajectory_tokens=opening.max_tokens + replies + between,
        windows=windows,
        text_end=find_answer_end(tokenizer.token_bytes) if stop_at_answer else None,
        picture=picture_of(shown.template, Picture),
    )


def build_call_dialogue(
    env: TextGame,
    tokenizer: Tokenizer,
    *,
    budget: PlayBudget,
    max_reply_tokens: int,
    context_tokens: int,
    episode_tokens: int,
) -> Dialogue:
    """The dialogue of an agent, whose program writes the messages (`text.calls`).

    Args:
      env, tokenizer, budget, max_reply_tokens: see `build_dialogue`.
      context_tokens: of what the model sees at once, the reply included.
      episode_tokens: `T`.

    Raises:
      ValueError: see `build_dialogue`.
    """
    nothing = Template(())
    message = compile_template(nothing, tokenizer, "symbols", known_ids={})
    stop_token, stop_tokens = _stop_tokens(tokenizer)
    return Dialogue(
        opening=message,
        following=message,
        parser=_parser(env, tokenizer, budget, max_reply_tokens, thinking=False),
        stop_tokens=jax.device_put(np.asarray(stop_tokens, np.int32)),
        prompts=Prompts(nothing, nothing, tokenizer.markup),
        stop_token=stop_token,
        max_trajectory_tokens=episode_tokens,
        windows=None,
        context_tokens=context_tokens,
    )


def _wording(
    env: TextGame, tokenizer: Tokenizer, budget: PlayBudget, options: PromptOptions
) -> Wording:
    if picture_of(env.template, Picture) is not None:
        for token in (BEGIN, END):
            tokenizer.id_of(token)  # refuses a tokenizer without it
    for control in tokenizer.special_tokens:
        # It may be the text of a stranger's server.
        if control in env.instruction:
            raise ValueError(
                f"the instruction of {env.name} contains {control!r}, which is a "
                "control token of the tokenizer and would not be read as its letters; "
                "leave it out of the instruction"
            )
    return build_wording(
        env,
        style=options.style,
        budget=budget,
        length_hint_words=options.length_hint_words,
        thinking=options.thinking,
        markup=tokenizer.markup,
    )


def _parser(
    env: TextGame,
    tokenizer: Tokenizer,
    budget: PlayBudget,
    max_reply_tokens: int,
    thinking: bool,
) -> AnswerParser:
    return build_parser(
        tokenizer,
        env.action_vocabulary,
        max_actions_per_turn=budget.max_actions_per_turn,
        max_reply_tokens=max_reply_tokens,
        thinking=thinking,
        answer_bytes=env.answer_bytes,
    )


def _stop_tokens(tokenizer: Tokenizer) -> tuple[int, tuple[int, ...]]:
    """Id of the end-of-turn token, and of all tokens that end a reply."""
    markup = tokenizer.markup
    end = tokenizer.id_of(markup.end)
    stop_ids = (end,) if tokenizer.stop_ids is None else tokenizer.stop_ids
    if end not in stop_ids:
        raise ValueError(
            f"{tokenizer.folder / 'generation_config.json'} ends replies with token "
            f"{', '.join(map(str, stop_ids))} but not with {end} ({markup.end!r}), "
            "which ends a turn; add it to eos_token_id or use an Instruct model"
        )
    return end, stop_ids
