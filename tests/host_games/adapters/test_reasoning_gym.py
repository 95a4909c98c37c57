"""Data sets of reasoning-gym as games: every one of them, and what is refused."""

import importlib
import random
import re
import sys

import numpy as np
import pytest

from configs import base
from ragen_jax.host_games import contract
from ragen_jax.host_games.adapters import reasoning_gym
from ragen_jax.host_games.adapters.reasoning_gym import (
    REFUSED,
    UNANSWERED,
    ReasoningGym,
)
from ragen_jax.host_games.base import SPLITS, VALIDATION
from ragen_jax.rollout.host.env import build_game, make_host_game
from tests import commands

pytestmark = pytest.mark.live

commands.need("reasoning_gym")
factory = importlib.import_module("reasoning_gym.factory")

# What a data set needs to be played at all.
OPTIONS = {"composite": {"datasets": [{"name": "chain_sum"}, {"name": "leg_counting"}]}}
# Whose questions have several right answers, one of which may be that of another one.
OPEN = ("graph_color", "jugs", "n_queens", "propositional_logic", "sokoban")
# Whose questions take 0.05 to 0.5 s each: fewer are drawn.
SLOW = (
    "codeio",
    "countdown",
    "futoshiki",
    "game_of_life",
    "intermediate_integration",
    "jugs",
    "knight_swap",
    "polynomial_equations",
    "quantum_lock",
    "rearc",
    "rubiks_cube",
    "sokoban",
    "sudoku",
    "zebra_puzzles",
)
# The fast tests play these: numbers, words, formulas, draws from the global generator.
HANDFUL = ("chain_sum", "list_functions", "propositional_logic", "spell_backward")
# Of unlike kinds, which workers play.
UNLIKE = (
    "arc_1d",
    "chain_sum",
    "codeio",
    "countdown",
    "list_functions",
    "propositional_logic",
    "spell_backward",
    "word_ladder",
)
PLAYED = sorted(set(factory.DATASETS) - set(REFUSED))
ALL = [
    pytest.param(name, marks=[] if name in HANDFUL else pytest.mark.slow)
    for name in PLAYED
]


def make(name, split="training", **options):
    return ReasoningGym(split, data_set=name, **OPTIONS.get(name, {}), **options)


def subject(name, options):
    settings = base.get_config().host.to_dict() | {"num_workers": 1}
    spec = make_host_game(
        f"reasoning_gym:{name}",
        options,
        max_failed_fraction=1.0,
        **settings,
    ).spec
    return contract.Subject(spec, {split: build_game(spec, split) for split in SPLITS})


# --- every data set


def test_all_but_the_refused_ones_are_played():
    assert len(PLAYED) == 103
    assert set(REFUSED) | set(UNANSWERED) | set(OPEN) <= set(factory.DATASETS)


@pytest.mark.parametrize("name", ALL)
def test_splits_have_different_questions(name):
    num_seeds = 3 if name in SLOW else 12
    shown = {}
    for split in SPLITS:
        game = make(name, split)
        shown[split] = {game.reset(seed).text for seed in range(num_seeds)}
        assert game.reset(1) == make(name, split).reset(1)
    training, validation = shown.values()
    assert not training & validation
    assert min(map(len, shown.values())) > (1 if name in SLOW else 4)


@pytest.mark.parametrize("name", ALL)
def test_its_answers_win_and_those_of_others_lose(name):
    # A formula may take SymPy long on a busy machine.
    game = make(name, VALIDATION, score_seconds=60)
    assert game.is_solvable == (name not in UNANSWERED)
    before = None
    for seed in range(3 if name in SLOW else 8):
        game.reset(seed)
        if name in UNANSWERED:
            assert game.solution() == ()
            continue
        (answer,) = game.solution()
        step = game.step(f" {answer}\n")
        assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
        assert step.info == {"success": True, "valid": True}
        if before not in (None, answer) and name not in OPEN:
            assert not game.step(before).info["success"]
        before = answer


@pytest.mark.parametrize("name", ALL)
def test_no_reply_is_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    game = make(name)
    game.reset(0)
    for reply in (
        "open('written', 'w')",
        "open(chr(119),chr(119))",
        "[open('written', 'w')]",
        '__import__("pathlib").Path("written").touch()',
    ):
        assert not game.step(reply).info["success"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ALL)
def test_any_reply_is_answered(name):
    game = make(name)
    for seed, reply in enumerate(contract.HOSTILE):
        game.reset(0 if name in SLOW else seed)
        step = game.step(reply)
        assert step.terminated
        assert not step.info["success"]


def test_questions_without_a_known_conclusion_are_left_out():
    game = make("propositional_logic", VALIDATION)
    # Three of these questions have a letter for an answer, which is not accepted.
    for seed in (40, 64, 111):
        game.reset(seed)
        assert game.step(*game.solution()).reward == 1.0


@pytest.mark.slow
def test_workers_keep_the_contract(monkeypatch):
    """All kinds in the same processes, as each process takes long to start."""
    # Many are compared by `test_splits_have_different_questions`.
    monkeypatch.setattr(contract, "NUM_BEGINNINGS", 18)
    parts = [{"name": name} for name in UNLIKE]
    played = subject("composite", {"datasets": parts})
    for rule in contract.CHECKS:
        assert list(rule(played)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    # Sokoban draws its first level for a minute.
    "name",
    sorted(set(factory.CURRICULA) - set(REFUSED) - {"knight_swap", "sokoban"}),
)
def test_the_easiest_level_is_played(name):
    for split in SPLITS:
        assert make(name, split, level=0).reset(1).text


def test_a_level_that_the_data_set_itself_refuses():
    with pytest.raises(ValueError, match=r"knight_swap does not take level=0.*nodes"):
        make("knight_swap", level=0)


# --- scores


def test_a_share_is_paid_but_is_no_success():
    game = make("spell_backward")
    game.reset(0)
    (answer,) = game.solution()
    wrong = answer[:-1] + ("a" if answer[-1] != "a" else "b")
    step = game.step(wrong)
    assert 0 < step.reward < 1
    assert step.info == {"success": False, "valid": True}
    lenient = make("spell_backward", success_score=step.reward)
    lenient.reset(0)
    assert lenient.step(wrong).info["success"]


def answering(monkeypatch, scorer, **options):
    game = make("chain_sum", **options)
    monkeypatch.setattr(game._data_set, "score_answer", scorer)
    game.reset(0)
    return game.step("3")


@pytest.mark.parametrize("score", [-0.5, 1.5, float("nan"), "much", None])
def test_what_is_no_score_makes_the_reply_invalid(monkeypatch, score):
    step = answering(monkeypatch, lambda reply, item: score)
    assert (step.reward, step.terminated) == (0.0, True)
    assert step.info == {"success": False, "valid": False}


def test_a_scorer_may_raise_print_and_change_the_item(monkeypatch, capsys):
    def scorer(reply, item):
        print("no!")
        item["metadata"].clear()
        raise RecursionError

    game = make("chain_sum")
    monkeypatch.setattr(game._data_set, "score_answer", scorer)
    game.reset(0)
    for _ in range(2):
        assert not game.step("3").info["valid"]
    assert game._item["metadata"]
    assert capsys.readouterr().out == ""


def endless(reply, item):
    while True:
        pass


def endless_and_proud(reply, item):
    try:
        return endless(reply, item)
    except BaseException:
        return 1.0


@pytest.mark.parametrize("scorer", [endless, endless_and_proud])
def test_a_scorer_that_takes_too_long_is_stopped(monkeypatch, scorer):
    step = answering(monkeypatch, scorer, score_seconds=0.1)
    assert (step.reward, step.info["valid"]) == (0.0, False)
    assert make("chain_sum", score_seconds=0.1).max_step_seconds == 0.1


@pytest.mark.parametrize("reply", ["", "  \n", "9" * 30_000])
def test_replies_that_are_not_scored(reply):
    game = make("chain_sum")
    game.reset(0)
    step = game.step(reply)
    assert step.info == {"success": False, "valid": False}


# --- questions


@pytest.mark.parametrize("name", ["list_functions", "codeio"])
def test_the_global_generators_are_left_alone(name):
    """These data sets draw from Python's and from NumPy's."""
    # A program of codeio that calls `np.random.rand` is among these.
    seeds = range(20) if name == "list_functions" else [8]

    def items(game):
        reasoning_gym._draw.cache_clear()
        return [(game.reset(seed).text, game.solution()) for seed in seeds]

    game = make(name)
    first = items(game)
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    assert items(game) == first
    assert (random.random(), np.random.random()) == expected


def test_programs_that_read_the_clock_are_left_out(monkeypatch):
    """Their answers differ from day to day, as would those of these questions."""
    game = make("chain_sum")
    texts = [game.reset(seed).text for seed in range(20)]
    monkeypatch.setattr(reasoning_gym, "_source", lambda item: "codeio")
    monkeypatch.setattr(reasoning_gym, "_CLOCK", re.compile("[+]"))
    reasoning_gym._draw.cache_clear()
    assert any("+" in text for text in texts)
    assert not any("+" in game.reset(seed).text for seed in range(20))
    reasoning_gym._draw.cache_clear()


def test_levels_are_those_of_the_curriculum():
    texts = {
        level: make("chain_sum", level=level).reset(0).text for level in (0, 3, None)
    }
    assert texts[0].count("+") + texts[0].count("-") == 1
    game = make("chain_sum", level={"num_digits": 4})
    config = game._data_set.config
    assert (config.max_terms, config.max_digits) == (2, 5)
    assert make("chain_sum", level=0)._data_set.config.max_digits == 1


def test_a_composite_mixes_its_parts():
    game = make("composite")
    shown = [game.reset(seed).text for seed in range(30)]
    num_sums = sum("arithmetic" in text for text in shown)
    assert 3 < num_sums < 27
    parts = [{"name": "boxnet"}, {"name": "word_ladder", "config": {"size": 50}}]
    game = ReasoningGym(data_set="composite", datasets=parts)
    assert (len(game._data_set), game.is_solvable) == (50, False)


def test_options_that_json_cannot_hold():
    game = make("calendar_arithmetic", tasks=["count_days"], year=2031)
    assert "2031" in game.reset(0).text
    time = make("time_intervals", task_types=["date"], min_date="2024-03-01")
    assert time._data_set.config.min_date.month == 3
    arc = make("arc_1d", size=10)
    assert len(arc._data_set) == 10
    boards = make("rearc", board_format_opts={"array_brackets": True})
    assert boards._data_set.config.board_format_opts.array_brackets


def test_too_few_questions():
    with pytest.raises(ValueError, match=r"has no question for .* 64 draws gave 1 "):
        make("count_bits", min_n=5, max_n=5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data_set": "chain_sums"}, "none of reasoning-gym's 106.*such as chain_sum"),
        ({"data_set": ""}, "none of reasoning-gym's"),
        *(({"data_set": name}, "is refused: its scorer") for name in REFUSED),
        ({"split": "test"}, "use training or validation"),
        ({"digits": 3}, "no option 'digits'; use level, .*min_terms, max_terms"),
        ({"min_terms": 5, "max_terms": 4}, "does not take level=None.*max_terms"),
        ({"min_terms": "many"}, "does not take.*ChainSumConfig"),
        ({"seed": None}, "seed is None; use a whole number"),
        ({"size": 0}, "size is 0; use a whole number from 1"),
        ({"level": 11}, "level is 11; use a whole number from 0 to 10"),
        ({"level": -1}, "level is -1"),
        ({"level": True}, "level is True"),
        ({"level": {"terms": 1}}, "is 'terms'; use num_terms or num_digits"),
        ({"level": {"num_digits": 10}}, r"level\.num_digits is 10.*from 0 to 9"),
        ({"level": 1, "max_terms": 4}, "max_terms is 4, but level sets it"),
        ({"data_set": "gsm_symbolic", "level": 0}, "gsm_symbolic has no curriculum"),
        ({"success_score": 0}, "success_score is 0"),
        ({"success_score": 1.5}, "success_score is 1.5"),
        ({"score_seconds": 0}, "score_seconds is 0"),
        ({"data_set": "composite"}, "at least one dataset"),
        ({"data_set": "composite", "datasets": ["gcd"]}, "datasets has 'gcd'; use"),
        (
            {"data_set": "composite", "datasets": [{"name": "coin_flip"}]},
            "'coin_flip', which is refused",
        ),
        (
            {
                "data_set": "composite",
                "datasets": [{"name": "gcd", "config": {"a": 1}}],
            },
            "reasoning_gym:gcd has no option 'a'",
        ),
    ],
)
def test_bad_options_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        ReasoningGym(**{"data_set": "chain_sum"} | options)


def test_there_are_no_tasks():
    with pytest.raises(ValueError, match="no tasks"):
        make("chain_sum").reset(0, task=1)


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    reasoning_gym._open.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"pip install .*\[reasoning-gym\]"):
        make("chain_sum")
