"""Episodes about theorems of a file, on a server.

No Lean runs here: a stub gives our own checker's verdict in the protocol's form.
"""

import pytest

from ragen_jax.host_games.lean.checker import PropositionalChecker
from ragen_jax.host_games.lean.game import LeanGame
from ragen_jax.host_games.lean.kimina import KiminaError
from tests.host_games.files import write_lines
from tests.host_games.lean.test_kimina import answer_to, message, reply_of
from tests.host_games.stub_server import answering

# Theorems of propositional logic in miniF2F's form, which the stub can judge.
CLAIMS = (
    "(p q : Prop) (h1 : p → q) (h2 : p) : q ∧ p",
    "(p q : Prop) (h1 : p ∨ q) : q ∨ p",
    "(p : Prop) : p → p",
    "(p q : Prop) (h1 : p ∧ q) : p",
)


@pytest.fixture
def data(tmp_path):
    return write_lines(
        tmp_path / "minif2f.jsonl",
        [
            {
                "name": f"claim_{i}",
                "split": "test" if i == 3 else "valid",
                "informal_prefix": f"/-- Claim {i}. -/\n",
                "formal_statement": f"theorem claim_{i} {claim} := by\n",
                "goal": "not read",
                "header": "import Mathlib\n\nopen Real\n\n",
            }
            for i, claim in enumerate(CLAIMS)
        ],
    )


def judge(path, headers, body):
    """Our checker in the protocol's form; lines are counted after the imports."""
    (snippet,) = body["snippets"]
    imports, _, rest = snippet["code"].partition("\n\n")
    opened, _, script = rest.partition("\n\n")
    assert (imports, opened) == ("import Mathlib", "open Real")
    if "slow" in script:
        return answer_to(body, {"error": "Lean process timed out"})
    result = PropositionalChecker().check(script)
    messages = [
        {
            "severity": found.severity,
            "pos": {"line": found.line + 2, "column": found.column},
            "endPos": {"line": found.line + 2, "column": found.column + 1},
            "data": found.text,
        }
        for found in result.messages
    ]
    return answer_to(body, {"response": {"env": 1, "messages": messages}})


def test_an_episode_on_a_server(data):
    with answering(judge) as (url, requests):
        game = LeanGame(data=data, url=url)
        assert game.num_tasks == 3
        assert not game.is_solvable
        goals = "p q : Prop\nh1 : p → q\nh2 : p\n⊢ q ∧ p"
        assert game.reset(0, task=0).text == f"Claim 0.\n\n{goals}"
        assert requests[-1][1]["snippets"][0]["code"].endswith(
            f"theorem claim_0 {CLAIMS[0]} := by\n  skip\n"
        )
        step = game.step("constructor")
        assert step.info["accepted"]
        assert step.observation.text.startswith("case left\np q : Prop")
        step = game.step("exact h3")
        assert step.observation.text.startswith("error: unknown identifier 'h3'\ncase")
        assert (step.info["valid"], step.reward) == (True, -1.1)
        step = game.step("exact slow")
        assert step.info["timed_out"]
        assert step.reward == -2.1
        assert game.step("skip").reward == -1.1
        assert game.step("exact h1 h2").info["accepted"]
        step = game.step("exact h2")
        assert (step.terminated, step.info["success"], step.reward) == (True, True, 9.9)
        assert requests[-1][1]["snippets"][0]["code"].endswith(
            ":= by\n  constructor\n  exact h1 h2\n  exact h2\n"
        )
        assert game.solution() == ()
        count = len(requests)
        game.reset(1, task=0)
        assert len(requests) == count
        game.close()


def test_seeds_choose_theorems_of_their_split(data):
    with answering(judge) as (url, _):
        training = LeanGame(data=data, url=url)
        seen = [training.reset(seed).text for seed in range(30)]
        assert len(set(seen)) == 3
        assert seen == [training.reset(seed).text for seed in range(30)]
        validation = LeanGame(split="validation", data=data, url=url)
        assert {validation.reset(seed).text[:8] for seed in range(9)} == {"Claim 3."}


@pytest.mark.parametrize(
    "reply",
    [
        "sorry",
        "exact sorryAx _ false",
        "admit",
        "native_decide",
        "decide +native",
        "set_option warn.sorry false in sorry",
        "run_tac skip",
        "x" * 4001,
        "skip\x00",
        "\ud800",
        "",
    ],
)
def test_replies_that_lean_is_not_shown(data, reply):
    with answering(judge) as (url, requests):
        game = LeanGame(data=data, url=url)
        game.reset(0)
        step = game.step(reply)
        assert not step.info["valid"]
        assert step.reward == -1.1
        assert len(requests) == 1


def test_lean_words_inside_others_are_allowed(data):
    with answering(judge) as (url, requests):
        game = LeanGame(data=data, url=url)
        game.reset(0)
        for reply in ("exact h.stop", "exact stops", "exact my_sorry", "exact admit'"):
            assert game.step(reply).info["valid"]
        assert len(requests) == 5


def test_lines_of_a_tactic_are_indented_alike(data):
    with answering(judge) as (url, requests):
        game = LeanGame(data=data, url=url)
        game.reset(0)
        game.step("\n    constructor\n    · exact h1\n      skip\n")
        assert requests[-1][1]["snippets"][0]["code"].endswith(
            "by\n  constructor\n  · exact h1\n    skip\n"
        )


def test_an_error_inside_a_tactic_is_not_the_theorems(data):
    """Of "unsolved goals", only the message at the theorem's own place means go on."""

    def answer(path, headers, body):
        status, answer = judge(path, headers, body)
        if "have" in body["snippets"][0]["code"]:
            (found,) = answer["results"][0]["response"]["messages"]
            inner = {**found, "pos": {"line": 9, "column": 20}}
            answer["results"][0]["response"]["messages"] = [found, inner]
        return status, answer

    with answering(answer) as (url, _):
        game = LeanGame(data=data, url=url)
        game.reset(0, task=0)
        step = game.step("have h : p := h2")
        assert not step.info["accepted"]
        assert step.observation.text.startswith("error: unsolved goals")


def test_sorry_that_lean_only_warns_of(data):
    def answer(path, headers, body):
        if "skip" in body["snippets"][0]["code"]:
            return judge(path, headers, body)
        warning = message("warning", "declaration uses 'sorry'")
        return answer_to(body, reply_of(warning))

    with answering(answer) as (url, _):
        game = LeanGame(data=data, url=url)
        game.reset(0, task=0)
        step = game.step("apply?")
        assert not step.info["success"]
        assert not step.info["accepted"]
        assert "sorry" in step.observation.text


def test_a_theorem_that_lean_refuses(tmp_path):
    rows = [
        {"name": "bad", "formal_statement": "theorem bad : t := by"},
        *({"formal_statement": f"theorem t {claim} := by"} for claim in CLAIMS),
    ]
    path = write_lines(tmp_path / "bad.jsonl", [{**row, "split": None} for row in rows])

    def answer(path, headers, body):
        return answer_to(body, reply_of(message("error", "unknown identifier 't'")))

    with answering(answer) as (url, _):
        game = LeanGame(data=path, url=url)
        with pytest.raises(ValueError, match="cannot be begun: unknown identifier 't'"):
            game.reset(0)


def test_a_server_that_fails_before_the_first_step(data):
    def answer(path, headers, body):
        error = "Lean REPL header command timed out in 30 seconds"
        return answer_to(body, {"error": error})

    with answering(answer) as (url, _):
        game = LeanGame(data=data, url=url)
        with pytest.raises(KiminaError, match="did not import Mathlib in time"):
            game.reset(0)
