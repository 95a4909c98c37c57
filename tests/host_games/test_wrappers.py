"""Wrappers of host games: what each changes, and that the rest stays."""

import dataclasses
import inspect
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_jax.host_games.base import BrokenContract, HostGame, Observation, Step
from ragen_jax.host_games.echo import Echo
from ragen_jax.host_games.wrappers import (
    CUT_MARK,
    WRAPPERS,
    Budget,
    CapObservation,
    Checked,
    LimitImages,
    PenalizeInvalid,
    SplitActions,
    Wrapper,
    cut_middle,
    wrap,
)
from tests.host_games.games import Pictured


class Count(HostGame):
    """Shows what it was told; ends after `goal` valid replies, truncates after 9."""

    instruction = "Count."
    num_tasks = 7
    metrics = ("heard",)
    is_solvable = True

    def __init__(self, split="training", goal=3):
        self.goal = goal
        self.heard = []
        self.is_closed = False

    def reset(self, seed, task=None):
        self.heard = []
        return Observation(f"seed {seed} task {task}", (np.zeros((1, 1, 3), "uint8"),))

    def step(self, reply):
        assert not self.is_over
        self.heard.append(reply)
        valid = self._num_valid
        return Step(
            observation=Observation(f"{valid} {reply}"),
            reward=float(valid),
            terminated=valid == self.goal,
            truncated=len(self.heard) == 9,
            info={
                "success": valid == self.goal,
                "valid": reply == "x",
                "heard": float(len(self.heard)),
            },
        )

    def solution(self):
        return ["x"] * (self.goal - self._num_valid)

    def close(self):
        self.is_closed = True

    @property
    def _num_valid(self):
        return self.heard.count("x")

    @property
    def is_over(self):
        return self._num_valid == self.goal or len(self.heard) == 9


HARMLESS = {"split": 1, "budget": 99, "penalize": -0.5, "cap": 1000, "images": 1}


@pytest.mark.parametrize("name", WRAPPERS)
def test_everything_else_passes_through(name):
    inside = Count()
    game = wrap(inside, [(name, HARMLESS[name])])
    assert isinstance(game, Wrapper)
    assert isinstance(game.game, Checked)
    assert game.game.game is inside
    assert (game.instruction, game.num_tasks, game.metrics) == ("Count.", 7, ("heard",))
    assert game.is_solvable is (name != "budget")
    alone = Count()
    alone.reset(5, 2)
    assert game.reset(5, 2).text == "seed 5 task 2"
    assert game.reset(5, 2).images[0].shape == (1, 1, 3)
    for _ in range(3):
        assert list(game.solution()) == list(alone.solution())
        assert game.step("x") == alone.step("x")
    assert list(game.solution()) == []
    game.close()
    assert inside.is_closed


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_table_calls_wrappers_with_a_game_and_one_argument(name):
    assert len(inspect.signature(WRAPPERS[name]).parameters) == 2


ODD = {
    "reward": [
        np.float16("inf"),
        "0.5",
        None,
        math.nan,
        math.inf,
        1e39,
        -1e300,
        1e20,
        10**400,
        [1.0],
    ],
    "success": [math.nan, "no", "False", None, 0.5, 2],
    "valid": [math.nan, "no"],
    "terminated": ["no", math.nan, None, 2],
    "truncated": ["", math.nan],
    "heard": ["many", None],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in ODD for value in ODD[name]], ids=str
)
def test_numbers_and_flags_that_are_none_are_refused_by_name(name, value):
    """`bool` of not-a-number and of any text is True, `float` of a text a number."""
    with pytest.raises(BrokenContract, match=rf"Odd: .*\b{name}\b"):
        wrap(Odd(name, value), ()).step("x")


@pytest.mark.parametrize("kind", [float, np.float32, np.bool_, np.asarray, jnp.asarray])
def test_numbers_and_flags_of_libraries_are_taken(kind):
    for name in ODD:
        assert wrap(Odd(name, kind(1)), ()).step("x")


class Odd(Count):
    """A game one of whose numbers is another."""

    def __init__(self, name, value):
        super().__init__()
        self.reset(0)
        self.name_of_odd, self.value = name, value

    def step(self, reply):
        step = super().step(reply)
        if self.name_of_odd in step.info:
            return dataclasses.replace(
                step, info={**step.info, self.name_of_odd: self.value}
            )
        return dataclasses.replace(step, **{self.name_of_odd: self.value})


# --- split


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        ("x", ["x"]),
        (" y || z\n", ["y", "z"]),
        ("y||z", ["y", "z"]),
        ("a|b||c", ["a|b", "c"]),
        ("a|||b", ["a", "|b"]),
        ("||a||||b||", ["a", "b"]),
        ("a||b||c||d", ["a", "b", "c"]),
        ("", [""]),
        (" || ", [""]),
        ("x||x||x||x", ["x", "x", "x"]),
    ],
)
def test_replies_are_split(reply, heard):
    inside = Count(goal=99)
    game = SplitActions(inside, 3)
    game.reset(0)
    game.step(reply)
    assert inside.heard == heard


def test_actions_behind_the_end_are_dropped():
    game = SplitActions(Count(goal=2), 4)
    game.reset(0)
    step = game.step("x||no||x||x")
    # 1 for the first, still 1 for "no", 2 for the last.
    assert step.reward == 4.0
    assert step.terminated
    assert step.info == {"success": True, "valid": False, "heard": 3.0}
    assert step.observation.text == "2 x"


def test_a_truncated_game_is_not_stepped():
    game = SplitActions(Budget(Count(), 2), 4)
    game.reset(0)
    step = game.step("a||b||c||d")
    assert (step.terminated, step.truncated) == (False, True)
    assert step.info["heard"] == 2.0


def test_valid_says_that_all_actions_were():
    game = SplitActions(Count(goal=99), 3)
    game.reset(0)
    assert [
        game.step(reply).info["valid"] for reply in ("x||x", "x||y", "y||x", "")
    ] == [
        True,
        False,
        False,
        False,
    ]


def test_the_instruction_says_how_to_write_several_actions():
    assert SplitActions(Count(), 4).instruction == (
        "Count.\nUp to 4 replies at once, separated by ||."
    )


@pytest.mark.parametrize("max_actions", [1, 2, 3, 50])
def test_solutions_are_grouped_and_win(max_actions):
    game = SplitActions(Count(goal=5), max_actions)
    game.reset(0)
    replies = game.solution()
    assert len(replies) == -(-5 // max_actions)
    *before, last = [game.step(reply) for reply in replies]
    assert not any(step.terminated or step.truncated for step in before)
    assert last.info["success"]


def test_the_actions_of_a_reply_have_the_time_of_each():
    """So that a step's limit which ends them is refused."""
    game = Count()
    assert SplitActions(game, 4).max_step_seconds is None
    game.max_step_seconds = 2.0
    assert SplitActions(game, 4).max_step_seconds == 8


def test_a_solution_that_would_be_cut_is_refused():
    class Or(Count):
        def solution(self):
            return ["a || b"]

    game = SplitActions(Or(), 2)
    game.reset(0)
    with pytest.raises(ValueError, match="leave it out for this game"):
        game.solution()


@given(st.text(alphabet="x| \ny☃\x00", max_size=40), st.integers(1, 4))
def test_any_reply_is_a_step(reply, max_actions):
    """Sums and ends are those of the actions played by hand."""
    game, alone = SplitActions(Count(), max_actions), Count()
    game.reset(0)
    alone.reset(0)
    step = game.step(reply)
    actions = game.game.heard
    assert 1 <= len(actions) <= max_actions
    played = [alone.step(action) for action in actions]
    assert step.reward == sum(each.reward for each in played)
    assert step.terminated == played[-1].terminated
    assert step.info["valid"] == all(each.info["valid"] for each in played)
    pieces = [piece.strip() for piece in reply.split("||") if piece.strip()]
    assert actions == (pieces or [""])[: len(actions)]
    assert played[-1].terminated or len(actions) == min(
        max_actions, max(1, len(pieces))
    )


@pytest.mark.parametrize("wrapper", [("split", 2), ("penalize", -0.1)])
def test_a_game_may_leave_out_what_a_reply_was(wrapper):
    class Silent(Count):
        def step(self, reply):
            return dataclasses.replace(super().step(reply), info={})

    game = wrap(Silent(), [wrapper])
    game.reset(0)
    step = game.step("x")
    assert step.reward == 1.0
    assert step.info == {"success": False, "valid": True}


# --- budget


def test_the_budget_truncates():
    game = Budget(Count(), 2)
    for _ in range(2):
        game.reset(0)
        first, second = game.step("x"), game.step("y")
        assert (first.terminated, first.truncated) == (False, False)
        assert (second.terminated, second.truncated) == (False, True)
        assert second.observation.text == "1 y"
        assert second.reward == 1.0


def test_a_game_that_ends_with_its_budget_is_not_truncated():
    game = Budget(Count(goal=2), 2)
    game.reset(0)
    game.step("x")
    step = game.step("x")
    assert (step.terminated, step.truncated) == (True, False)


def test_the_games_own_truncation_stays():
    game = Budget(Count(), 20)
    game.reset(0)
    assert [game.step("y").truncated for _ in range(9)] == [False] * 8 + [True]


def test_a_solution_longer_than_the_budget_is_none():
    game = Budget(Count(goal=3), 3)
    game.reset(0)
    assert len(game.solution()) == 3
    game.step("y")
    assert game.solution() == ()


# --- penalty


def test_only_invalid_replies_are_penalized():
    game = PenalizeInvalid(Count(), -0.25)
    game.reset(0)
    assert [game.step(reply).reward for reply in ("x", "y", "x", "")] == [
        1.0,
        0.75,
        2.0,
        1.75,
    ]


def test_one_penalty_for_a_split_reply():
    game = wrap(Count(goal=99), [("split", 4), ("penalize", -0.25)])
    game.reset(0)
    assert game.step("a||b||c").reward == -0.25
    each = wrap(Count(goal=99), [("penalize", -0.25), ("split", 4)])
    each.reset(0)
    assert each.step("a||b||c").reward == -0.75


# --- cap


def test_long_observations_are_cut_in_the_middle():
    game = CapObservation(Count(), 20)
    game.reset(0)
    step = game.step("a" * 30 + "b" * 30)
    assert step.observation.text == "0 aaaaa [...] bbbbbb"
    assert len(step.observation.text) == 20
    assert game.step("c" * 18).observation.text == "0 " + "c" * 18


@given(st.text(max_size=80), st.integers(20, 60))
def test_cut_texts_keep_both_ends(text, max_chars):
    cut = cut_middle(text, max_chars)
    if len(text) <= max_chars:
        assert cut == text
        return
    assert len(cut) == max_chars
    kept = max_chars - len(CUT_MARK)
    head, tail = cut[: -(-kept // 2)], cut[max_chars - kept // 2 :]
    assert cut == head + CUT_MARK + tail
    assert text.startswith(head)
    assert text.endswith(tail)


# --- the table


def test_wrappers_are_stacked_from_the_inside_out():
    replies = wrap(Count(), (("split", 4), ("budget", 2)))
    assert isinstance(replies, Budget)
    replies.reset(0)
    assert not replies.step("a||b||c||d").truncated
    actions = wrap(Count(), [["budget", 2], ["split", 4]])
    assert isinstance(actions, SplitActions)
    actions.reset(0)
    assert actions.step("a||b||c||d").truncated
    game = Count()
    assert wrap(game, ()).game is game


@pytest.mark.parametrize(
    ("wrappers", "says"),
    [
        ("split", "use a list of pairs"),
        (None, "use a list of pairs"),
        (("split", 4), "use pairs such as"),
        ([("spilt", 4)], "one of split, budget, penalize, cap"),
        ([("split",)], "use pairs such as"),
        ([(["split"], 4)], "use pairs such as"),
        ([5], "use pairs such as"),
        ([("split", 0)], "at least 1"),
        ([("split", True)], "at least 1"),
        ([("split", 1.5)], "at least 1"),
        ([("budget", 0)], "at least 1"),
        ([("cap", 19)], "at least 20"),
        ([("cap", "20")], "at least 20"),
        ([("penalize", 0)], "below 0"),
        ([("penalize", 0.1)], "below 0"),
        ([("penalize", float("-inf"))], "finite"),
        ([("penalize", float("nan"))], "finite"),
        ([("penalize", True)], "below 0"),
        ([("penalize", "-1")], "below 0"),
    ],
)
def test_bad_wrappers_are_refused(wrappers, says):
    with pytest.raises(ValueError, match=says):
        wrap(Count(), wrappers)


def test_solutions_win_through_all_wrappers():
    stack = (("split", 2), ("budget", 3), ("penalize", -1), ("cap", 20))
    for seed in range(200):
        game = wrap(Echo("validation", num_words=9), stack)
        assert len(game.reset(seed).text) == 20
        (reply,) = game.solution()
        step = game.step(reply)
        assert step.info["success"]
        assert step.reward == 1.0


# --- images


def test_images_are_limited_and_texts_stay():
    shown = [LimitImages(Pictured("training"), n).reset(3) for n in (0, 1, 2, 3)]
    assert [len(x.images) for x in shown] == [0, 1, 2, 2]
    assert {x.text for x in shown} == {"seed 3"}
    np.testing.assert_array_equal(shown[1].images[0], Pictured.picture(3, 0))
    game = LimitImages(Pictured("training"), 0)
    game.reset(3)
    assert game.step("go").observation == Observation("seed 3 count 1 go")


@pytest.mark.parametrize(
    "images",
    [
        [np.zeros((2, 2, 3), np.uint8)],
        (np.zeros((2, 2), np.uint8),),
        (np.zeros((2, 2, 4), np.uint8),),
        (np.zeros((0, 2, 3), np.uint8),),
        (np.zeros((2, 2, 3)),),
        ("image.png",),
    ],
)
def test_what_is_no_image_is_refused(images):
    class Broken(Count):
        def reset(self, seed, task=None):
            return Observation("look", images)

    with pytest.raises(BrokenContract, match="image"):
        wrap(Broken(), ()).reset(0)
