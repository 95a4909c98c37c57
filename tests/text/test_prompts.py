"""What the messages say: everything the player needs, nothing that is not true."""

import re

import pytest

import envs
from envs.base import PlayBudget
from ragen_jax.text import answers
from ragen_jax.text.prompts import PROMPT_STYLES, build_prompts
from tests.text import dialogues

BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=2, max_actions_per_episode=7)
FIELDS = dialogues.FIELDS | {
    "reward_hundredths": 90,
    "first_arm": 0,
    "second_arm": 3,
    "taken_arm": 0,
}


def prompts(name="frozen_lake", style="full", budget=BUDGET, words=40):
    return build_prompts(
        envs.make(name), style=style, budget=budget, length_hint_words=words
    )


def test_full_opening_explains_the_game_and_the_budget():
    env = envs.make("frozen_lake")
    text = prompts().opening.render(FIELDS | {"turn": 1, "actions_left": 7})
    system, user = text.split("<|im_end|>\n")[:2]
    assert env.instruction in system
    for words in ("Left, Down, Right, Up", "3 turns", "7 actions", "up to 2", '"||"'):
        assert words in system
    for words in (
        "Turn 1\n",
        "State:\n" + env.template.render(FIELDS),
        "Actions left: 7\n",
        "<think>your reasoning</think><answer>First || Second</answer>",
        "at most 2 actions",
        "40 words",
    ):
        assert words in user
    assert "Reward" not in text
    assert "no valid action" not in text


def test_full_following_tells_the_last_result():
    following = prompts().following
    text = following.render(FIELDS)
    assert text.startswith(
        "\n<|im_start|>user\nReward of your last turn: 0.9\nTurn 2\n"
    )
    warned = following.render(FIELDS | {"was_invalid": 1, "reward_hundredths": -10})
    assert "last turn: -0.1\nYour last reply held no valid action" in warned
    assert following.render(FIELDS | {"was_cut": 1}) == "<|im_end|>" + text


def test_one_action_per_turn_needs_no_separator():
    text = prompts(budget=PlayBudget(1, 1, 1)).opening.render(FIELDS)
    assert "||" not in text
    assert "You have 1 turn and 1 action in all." in text
    assert "<answer>Action</answer>" in text


def test_names_that_change_with_the_level_are_not_listed():
    env = envs.make("bandit")
    system = prompts("bandit").opening.render(FIELDS).split("<|im_end|>")[0]
    assert "names that the state offers" in system
    assert not any(name in system for name in env.action_vocabulary)


def test_terse_says_the_same_in_a_few_words():
    terse = prompts(style="terse")
    assert terse.opening.render(FIELDS | {"turn": 1, "actions_left": 7}) == (
        "<|im_start|>system\nfrozenlake<|im_end|>\n<|im_start|>user\nTurn 1\n"
        "P_OG\nX√P_\nOGX√\nP_OG\nLeft 7<|im_end|>\n<|im_start|>assistant\n<think>"
    )
    assert terse.following.render(FIELDS | {"was_invalid": 1}) == (
        "\n<|im_start|>user\nReward 0.9\nInvalid\nTurn 2\n"
        "P_OG\nX√P_\nOGX√\nP_OG\nLeft 5<|im_end|>\n<|im_start|>assistant\n<think>"
    )


@pytest.mark.parametrize("style", PROMPT_STYLES)
def test_messages_have_the_promised_fields(style):
    built = prompts(style=style)
    assert set(built.opening.fields) == {"board", "turn", "actions_left"}
    assert set(built.following.fields) == {
        *built.opening.fields,
        "reward_hundredths",
        "was_invalid",
        "was_cut",
    }


def test_the_separator_shown_is_the_one_parsed():
    shown = prompts().opening.render(FIELDS).split("<answer>First ")[1]
    assert shown.encode().startswith(answers.SEPARATOR + b" Second")


def test_an_unknown_style_lists_the_choices():
    with pytest.raises(ValueError, match=r"prompt.style='loud'.*full, example, terse"):
        prompts(style="loud")


@pytest.mark.parametrize(
    ("name", "budget", "thinking", "replies"),
    [
        ("frozen_lake", BUDGET, False, ["Left || Up"]),
        ("sokoban", PlayBudget(1, 1, 1), True, ["Up"]),
        # The options of the level, not those of another.
        ("bandit", PlayBudget(1, 1, 1), False, ["Anchor", "Cannon"]),
    ],
)
def test_example_shows_answers_that_the_level_allows(name, budget, thinking, replies):
    env = envs.make(name)
    text = build_prompts(
        env, style="example", budget=budget, length_hint_words=40, thinking=thinking
    ).opening.render(FIELDS)
    user = text.split("<|im_start|>user")[1]
    shown = re.findall(r"(<think>[^<]*</think>)?<answer>([^<]*)</answer>", user)
    assert [answer for _, answer in shown] == replies
    assert all(bool(thought) == thinking for thought, _ in shown)
    limit = "one action" if budget.max_actions_per_turn == 1 else "at most 2 actions"
    assert f" and nothing else: {limit}, and no more than 40 words in all.\n" in user


def test_example_is_full_where_a_game_reads_answers_itself():
    example, full = (
        prompts("countdown", style, PlayBudget(1, 1, 1)).opening
        for style in ("example", "full")
    )
    assert example == full
