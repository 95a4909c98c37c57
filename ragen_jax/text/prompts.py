"""Wording of a game: its messages as templates.

In: an environment and the play budget. Out: `Prompts`, the opening of a dialogue and
the message after each reply, chat markup included. Knows no tokens and no parsing.

Styles: "full" explains everything, for models that have never seen the game;
"example" does so with a worked answer, which small models copy better than
placeholders; "terse" uses as few tokens as possible, for the pocket model, which was
trained on it. If a single word of "terse" changes, the shipped pocket model must be
trained again (`tests/sft/test_pocket.py` fails then).

Fields besides the environment's: `turn` (from 1), `actions_left`; in texts about a
past turn also `reward_hundredths` (that turn's reward without the penalty),
`was_invalid` (1 if its reply lacked an action) and `was_cut` (see
`chat.rest_of_reply`).

What the messages carry follows RAGEN (arXiv 2504.20073); the wording is original.
"""

import dataclasses

from envs.base import PlayBudget, TextGame
from envs.templates import Choice, Number, Template
from ragen_jax.text import answers, chat

# Rewards in texts are within +-999.99.
MAX_REWARD_HUNDREDTHS = 99_999
# Between the actions of one answer.
SEPARATOR = answers.SEPARATOR.decode()


@dataclasses.dataclass(frozen=True)
class Wording:
    """Texts of a game, before they are cut into messages.

    Attributes:
      system: the system message.
      turn: number, state and limits of a turn; nothing about other turns.
      result: result of the turn before; precedes `turn`.
      past_heading, turn_heading: headings of the past turns and of `turn` in a message
        that contains both.
      past_turn: a past turn in such a message, up to its reply.
      past_result: the rest of a past turn, from the end of its reply on.
      reply_prefix: the tag that the template writes before a reply.
      markup: around the messages.
    """

    system: Template
    turn: Template
    result: Template
    past_heading: str
    turn_heading: str
    past_turn: Template
    past_result: Template
    reply_prefix: str
    markup: chat.Markup = chat.CHATML


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Whole messages with their chat markup.

    Attributes:
      opening: system message, first user message, header of the first reply.
      following: from the end of a reply to the header of the next one.
      markup: around them.
    """

    opening: Template
    following: Template
    markup: chat.Markup = chat.CHATML


def build_wording(
    env: TextGame,
    *,
    style: str,
    budget: PlayBudget,
    length_hint_words: int,
    thinking: bool = True,
    markup: chat.Markup = chat.CHATML,
) -> Wording:
    """Builds the texts of a game.

    Args:
      env: gives the instruction and the template of states.
      style: entry of `PROMPT_STYLES`.
      budget: limits in the text, and bounds of its numbers.
      length_hint_words: longest reply asked for; the terse style asks for none.
      thinking: a reply is a thought and an answer; False: an answer alone.
      markup: around the messages.

    Raises:
      ValueError: an unknown style.
    """
    if style not in PROMPT_STYLES:
        raise ValueError(
            f"prompt.style={style!r} is unknown; choose one of "
            f"{', '.join(PROMPT_STYLES)}"
        )
    wording = PROMPT_STYLES[style](env, budget, length_hint_words, thinking)
    return dataclasses.replace(wording, markup=markup)


def call_wording(env: TextGame) -> Wording:
    """The texts of an agent's calls in records: what each says, and nothing else."""
    nothing = Template(())
    return Wording(
        system=nothing,
        turn=env.template,
        result=nothing,
        past_heading="",
        turn_heading="",
        past_turn=nothing,
        past_result=nothing,
        reply_prefix="",
    )


def build_prompts(
    env: TextGame,
    *,
    style: str,
    budget: PlayBudget,
    length_hint_words: int,
    thinking: bool = True,
) -> Prompts:
    """The messages of a game; arguments and errors are those of `build_wording`."""
    return cut_messages(
        build_wording(
            env,
            style=style,
            budget=budget,
            length_hint_words=length_hint_words,
            thinking=thinking,
        )
    )


def cut_messages(wording: Wording) -> Prompts:
    """Messages of the dialogue; from the second on they begin with the last result."""
    ending = (wording.reply_prefix, wording.markup)
    return Prompts(
        opening=chat.opening(wording.system, wording.turn, *ending),
        following=chat.following(wording.result + wording.turn, *ending),
        markup=wording.markup,
    )


def full(
    env: TextGame, budget: PlayBudget, length_hint_words: int, thinking: bool
) -> Wording:
    """Complete sentences, for models that have never seen the game."""
    prefix = "<think>your reasoning</think>" if thinking else ""
    names = f"First {SEPARATOR} Second" if budget.max_actions_per_turn > 1 else "Action"
    reply = f"Reply with {prefix}<answer>{names}</answer>"
    request = Template((reply + _limits(budget, length_hint_words),))
    return _explain(env, budget, request, thinking)


def example(
    env: TextGame, budget: PlayBudget, length_hint_words: int, thinking: bool
) -> Wording:
    """`full`, with answers that the level allows in place of placeholders.

    A game that reads answers itself has no names to show, and is as in `full`.
    """
    answers = _examples(env, budget, thinking)
    if not answers:
        return full(env, budget, length_hint_words, thinking)
    limits = _limits(budget, length_hint_words)
    request = Template(("Reply like this:", *answers, limits))
    return _explain(env, budget, request, thinking)


def _explain(
    env: TextGame, budget: PlayBudget, request: Template, thinking: bool
) -> Wording:
    prefix = chat.forced_prefix(thinking)
    state = _turn(budget) + Template(("State:\n",)) + env.template
    limits = Template(("Actions left: ", _actions_left(budget), "\n"))
    return Wording(
        system=Template((f"{_PERSONA}\n\n{env.instruction}\n\n{_rules(env, budget)}",)),
        turn=state + limits + request,
        result=_result("Reward of your last turn: ", "Your last reply"),
        past_heading="Your last turns, the oldest first:\n",
        turn_heading="Your turn now:\n",
        past_turn=state + Template((f"Your reply: {prefix}",)),
        past_result=Template(("\n",)) + _result("Reward: ", "That reply"),
        reply_prefix=prefix,
    )


def terse(
    env: TextGame, budget: PlayBudget, length_hint_words: int, thinking: bool
) -> Wording:
    """The game's name, then numbers and the state. Says nothing about the length."""
    del length_hint_words
    prefix = chat.forced_prefix(thinking)
    turn = _turn(budget) + env.template
    turn += Template(("Left ", _actions_left(budget)))
    result = Template(
        ("Reward ", _REWARD, "\n", Choice("was_invalid", ("", "Invalid\n")))
    )
    return Wording(
        system=Template((env.name.lower(),)),
        turn=turn,
        result=result,
        past_heading="",
        turn_heading="",
        past_turn=turn + Template((f"\n{prefix}",)),
        past_result=Template(("\n",)) + result,
        reply_prefix=prefix,
    )


def _turn(budget: PlayBudget) -> Template:
    return Template(("Turn ", Number("turn", 1, budget.max_turns), "\n"))


def _actions_left(budget: PlayBudget) -> Number:
    return Number("actions_left", 0, budget.max_actions_per_episode)


def _result(reward: str, reply: str) -> Template:
    warning = f"{reply} held no valid action, so nothing happened.\n"
    return Template((reward, _REWARD, "\n", Choice("was_invalid", ("", warning))))


def _rules(env: TextGame, budget: PlayBudget) -> str:
    if env.action_hint is not None:
        actions = env.action_hint
    elif len(env.action_vocabulary) == env.num_actions:
        actions = f"Your actions: {', '.join(env.action_vocabulary)}."
    else:
        actions = "Your actions are the names that the state offers."
    turns = _count(budget.max_turns, "turn")
    total = _count(budget.max_actions_per_episode, "action")
    rules = f"{actions} You have {turns} and {total} in all."
    if budget.max_actions_per_turn > 1:
        rules += (
            f" One turn may run up to {budget.max_actions_per_turn} actions, in order; "
            f'write "{SEPARATOR}" between them.'
        )
    return rules


def _limits(budget: PlayBudget, length_hint_words: int) -> str:
    limit = "one action"
    if budget.max_actions_per_turn > 1:
        limit = f"at most {budget.max_actions_per_turn} actions"
    words = f"no more than {length_hint_words} words in all"
    return f" and nothing else: {limit}, and {words}.\n"


def _examples(env: TextGame, budget: PlayBudget, thinking: bool) -> list[str | Choice]:
    """Whole replies, each with the blank before it, separated by " or"."""
    thought = "<think>This looks best.</think>" if thinking else ""

    def reply(answer: str) -> str:
        return f" {thought}<answer>{answer}</answer>"

    if env.named_actions:
        choices = [
            Choice(field, tuple(map(reply, names)))
            for field, names in env.named_actions.items()
        ]
        return [x for choice in choices for x in (choice, " or")][:-1]
    names = env.action_vocabulary
    if not names or len(names) != env.num_actions:
        return []
    count = min(2, budget.max_actions_per_turn)
    # The first and the last: the first two of many games undo each other.
    shown = (names[0], names[-1])[:count]
    return [reply(f" {SEPARATOR} ".join(shown))]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_PERSONA = "You play a game in text, turn by turn, and aim for the highest reward."
_REWARD = Number(
    "reward_hundredths", -MAX_REWARD_HUNDREDTHS, MAX_REWARD_HUNDREDTHS, decimals=2
)

PROMPT_STYLES = {"full": full, "example": example, "terse": terse}
