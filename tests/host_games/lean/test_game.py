"""Proofs as a game: rules, rewards, hostile replies, solutions, forms of messages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.lean.checker import (
    CheckResult,
    Message,
    PropositionalChecker,
    read_theorem,
    write_theorem,
)
from ragen_jax.host_games.lean.game import LeanGame
from ragen_jax.host_games.lean.problems import Problem
from ragen_jax.host_games.lean.prover import Prover
from ragen_jax.host_games.lean.tactics import parse_tactic, run_tactic

THEOREM = "theorem goal (p q : Prop) (h1 : p → q) (h2 : p) : q ∧ p := by"


def at(line: int, column: int, text: str) -> CheckResult:
    return CheckResult((Message("error", line, column, text),), is_done=False)


def begin(theorem: str, **options) -> LeanGame:
    game = LeanGame(**options)
    goal = read_theorem(theorem)[1]
    game._problems.problem = lambda seed: Problem(goal, 1)
    game.reset(0)
    return game


class TestPropositionalChecker:
    def test_messages(self):
        check = PropositionalChecker().check
        by = len(THEOREM) - 2
        goals = "unsolved goals\np q : Prop\nh1 : p → q\nh2 : p\n⊢ q ∧ p"
        assert check(THEOREM) == at(1, by, goals)
        assert check(f"{THEOREM}\n  skip\n") == at(1, by, goals)
        assert check(f"{THEOREM}\n  constructor\n  exact h1 h2\n") == at(
            1, by, "unsolved goals\ncase right\np q : Prop\nh1 : p → q\nh2 : p\n⊢ p"
        )
        both = check(f"{THEOREM}\n  constructor").messages[0].text
        assert both.count("case ") == 2
        assert "\n\ncase right\n" in both
        done = f"{THEOREM}\n  constructor\n  exact h1 h2\n  exact h2\n"
        assert check(done) == CheckResult((), is_done=True)
        assert check(done + "  exact h2\n") == at(5, 2, "no goals to be solved")
        assert check(f"{THEOREM}\n  skip\n  exact h3\n  left") == at(
            3, 2, "unknown identifier 'h3'"
        )
        assert check(f"{THEOREM}\n  sorry") == at(2, 2, "unknown tactic")

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "theorem",
            "theorem goal : p := by",
            "theorem goal (p : Prop) := by",
            "theorem goal (p : Prop) : p",
            "theorem goal (p : Prop) (h : p : p := by",
            "theorem goal (p : Prop) : p ∧ := by",
            "lemma goal (p : Prop) : p := by",
        ],
    )
    def test_what_is_no_theorem(self, line):
        result = PropositionalChecker().check(f"{line}\n  skip\n")
        assert not result.is_done
        assert result.messages[0].line == 1
        assert "unsolved" not in result.messages[0].text

    def test_theorems_are_read_back(self):
        game = LeanGame()
        for seed in range(50):
            game.reset(seed)
            goal = game._problem.goal
            line = write_theorem(goal, ("p", "q", "r"))
            assert read_theorem(line) == (("p", "q", "r"), goal)


@pytest.mark.parametrize(
    "split", ["training", pytest.param("validation", marks=pytest.mark.slow)]
)
def test_solutions_win(split):
    game = LeanGame(split=split)
    assert game.is_solvable
    for seed in range(250):
        game.reset(seed)
        replies = game.solution()
        assert len(replies) == game._problem.tactics
        for i, reply in enumerate(replies):
            step = game.step(reply)
            is_last = i == len(replies) - 1
            assert step.info["valid"]
            assert step.info["accepted"]
            assert step.info["success"] == step.terminated == is_last
            assert step.reward == pytest.approx(9.9 if is_last else -0.1)
        assert step.observation.text == "proved"


def test_solutions_are_known_where_goals_can_be_proved():
    """Also after arbitrary moves, and only there."""
    game, provable, lost = LeanGame(max_steps=60), 0, 0
    tried = ("exfalso", "left", "right", "cases h1", "apply h1", "intro", "apply h2")
    for seed in range(150):
        game.reset(seed)
        for i in range(3):
            game.step(tried[(seed + 3 * i) % len(tried)])
        goals = (game._problem.goal,)
        for text in game._tactics:
            goals = run_tactic(goals, parse_tactic(text))
        prover = Prover()
        can = all(prover.prove([f for _, f in g.hypotheses], g.target) for g in goals)
        replies = game.solution()
        assert bool(replies) == (can and bool(goals))
        provable, lost = provable + can, lost + (not can)
        for reply in replies:
            step = game.step(reply)
        assert not replies or step.info["success"]
    assert provable > 30
    assert lost > 30


def test_no_solution_where_steps_are_too_few():
    game = begin(THEOREM, max_steps=6, max_tactics=6)
    assert len(game.solution()) == 4
    for _ in range(3):
        game.step("exact h9")
    assert game.solution() == ()


def test_what_is_seen():
    game = begin(THEOREM)
    start = "h1 : p -> q\nh2 : p\n|- q /\\ p"
    assert game.reset(0).text == start
    wrong = game.step("exact h3")
    assert wrong.observation.text == f"error: unknown identifier 'h3'\n{start}"
    step = game.step("constructor")
    assert step.observation.text == "h1 : p -> q\nh2 : p\n|- q\n(1 more)"
    assert game.step("apply h2").observation.text.startswith("error: apply: p does")
    unicode = begin(THEOREM, ascii=False)
    assert unicode.reset(0).text == "h1 : p → q\nh2 : p\n⊢ q ∧ p"
    assert "→ implies" in unicode.instruction
    assert game.instruction.isascii()


def test_both_spellings_are_read_everywhere():
    for ascii in (True, False):
        for text in ("have h : p ∧ q → ¬q", "have h : p /\\ q -> ~q"):
            game = begin(THEOREM, ascii=ascii)
            assert game.step(text).info["accepted"]


def test_rewards():
    game = begin(
        THEOREM,
        max_steps=6,
        step_reward=-0.5,
        accepted_reward=1.0,
        rejected_reward=-2.0,
        done_reward=7.0,
        max_steps_reward=-3.0,
    )
    assert game.step("constructor").reward == 0.5
    assert game.step("exact h1").reward == -2.5
    assert game.step("huh").reward == -2.5
    assert game.step("exact h1 h2").reward == 0.5
    assert game.step("exact h2").reward == 7.5
    game.reset(0)
    steps = [game.step("left") for _ in range(6)]
    assert [step.reward for step in steps] == [-2.5] * 5 + [-5.5]
    assert [step.truncated for step in steps] == [False] * 5 + [True]
    assert not any(step.terminated for step in steps)


def test_the_last_step_allowed_may_finish():
    game = begin("theorem t (p : Prop) (h1 : p) : p := by", max_steps=1, max_tactics=1)
    step = game.step("exact h1")
    assert (step.terminated, step.truncated, step.reward) == (True, False, 9.9)


@pytest.mark.parametrize("reply", ["skip", "apply h1", "exfalso\n", "  cases h4 "])
def test_nothing_is_paid_for_standing_still(reply):
    """What Lean accepts and what leaves the goals alone is rejected."""
    given = "(h1 : False → False) (h2 : p ∨ q)"
    game = begin(f"theorem t (p q : Prop) {given} : False := by")
    before = game._goals
    step = game.step(reply)
    assert not step.info["accepted"]
    assert step.reward == -1.1
    assert game._goals == before


def test_idle_steps_never_add_up():
    """The longest run of accepted tactics that prove nothing pays below 0."""
    game = begin(THEOREM)
    rewards = [game.step(f"have a{i} := h2").reward for i in range(12)]
    assert rewards == [-0.1] * 11 + [-2.1]


HOSTILE = [
    "",
    "   ",
    "\n",
    "\x00",
    "intro h\nexact h",
    "intro h\x0bexact h",
    "exact h\u2028exact h",
    "\ud800",
    "exact " + "(" * 150,
    "x" * 100_000,
    "⟨" * 50,
    "exact ⟨h1, ⟨h2",
    "theorem t : False := by",
    "sorry",
    "exact sorry",
    "{0} %s {p}",
    "🙂",
    "exact h1; exact h2",
    "intro ﬁ",
    "INTRO H",
]


@pytest.mark.parametrize("reply", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_replies(reply):
    game = begin(THEOREM)
    before = game._goals
    step = game.step(reply)
    accepted = step.info["accepted"]
    assert not accepted
    assert step.info["valid"] == (reply == "exact sorry")
    assert step.reward == -1.1
    assert game._goals == before
    assert len(step.observation.text) < 300


TEXTS = st.text(max_size=60) | st.text(alphabet="hpqr12()⟨⟩.,:=→-> ~/\\|", max_size=60)
VERBS = ["", "intro ", "exact ", "apply ", "cases ", "rcases ", "have h9 : ", "left"]


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 50), st.lists(st.tuples(st.sampled_from(VERBS), TEXTS)))
def test_any_replies_make_an_episode(seed, replies):
    game = LeanGame()
    game.reset(seed)
    for verb, text in replies:
        step = game.step(verb + text)
        assert set(step.info) == {"success", "valid", "accepted", "timed_out"}
        assert step.info["valid"] or not step.info["accepted"]
        if step.terminated or step.truncated:
            break
    else:
        assert isinstance(game.solution(), tuple)


def test_hard_formulas_of_a_player_do_not_hang_the_solution():
    game = begin(THEOREM)
    hard = "((p <-> q) <-> r) <-> (p <-> (q <-> r))"
    theorem = THEOREM.replace("p q :", "p q r :")
    game = begin(theorem)
    for i in range(4):
        step = game.step(f"have a{i} : ({hard}) -> ({hard} -> ~(q <-> (p <-> r)))")
        assert step.info["accepted"]
    assert isinstance(game.solution(), tuple)


def test_errors_are_cut_to_the_length_asked_for():
    game = begin(THEOREM, message_chars=5)
    assert game.step("exact h3").observation.text.startswith("error: unkno ...\nh1")
