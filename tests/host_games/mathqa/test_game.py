"""Questions, their judges and their splits."""

import concurrent.futures
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.mathqa import judge as math_judge
from ragen_jax.host_games.mathqa import questions as math_data
from ragen_jax.host_games.mathqa.game import MathQA
from ragen_jax.host_games.mathqa.generated import NAMES, THINGS, draw_problem
from tests.commands import need
from tests.host_games.files import write_json

TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", " \n", "\x00", "(" * 3000, "9" * 5000, "\ud800", "1/0", "𝟙𝟚", "||", "<answer>"]
)


def rows(*originals: str) -> list[dict]:
    """Two paraphrases per original question; the truth is its length."""
    return [
        {
            "type": "GSM_Rephrased",
            "query": f"{opening} {text}",
            "original_question": text,
            "response": f"We count. #### {len(text)}\nThe answer is: {len(text)}",
        }
        for text in originals
        for opening in ("Say:", "Tell me:")
    ]


@pytest.mark.parametrize("num_steps", [1, 2, 3])
@pytest.mark.parametrize("max_number", [10, 50, 10_000])
def test_the_solution_wins_and_another_number_loses(num_steps, max_number):
    game = MathQA(num_steps=num_steps, max_number=max_number)
    for seed in range(100):
        game.reset(seed)
        (answer,) = game.solution()
        step = game.step(f" {answer}\n")
        assert (step.reward, step.terminated) == (1.0, True)
        assert step.info == {"success": True, "valid": True}
        game.reset(seed)
        step = game.step(str(int(answer) + 1))
        assert (step.reward, step.terminated) == (0.0, True)
        assert step.info == {"success": False, "valid": True}


def evaluate(question: str) -> int:
    """The answer of a generated story, read off its sentences a second time."""
    told, *changes, ask = re.split(r"(?<=[.?])\s", question)
    if changes and re.search("shared|pack|costs", changes[-1]):
        *changes, ask = changes
    numbers = [int(n) for n in re.findall(r"\d+", told)]
    amount = numbers[0] * (numbers[1] if len(numbers) == 2 else 1)
    for sentence in changes:
        (number,) = (int(n) for n in re.findall(r"\d+", sentence))
        loses = re.search("away|lost|sells", sentence)
        amount += -number if loses else number
    numbers = [int(n) for n in re.findall(r"\d+", ask)]
    if not numbers:
        return amount
    return amount * numbers[0] if "costs" in ask else amount // numbers[0]


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_answers_follow_from_the_sentences(num_steps):
    game = MathQA(num_steps=num_steps)
    for seed in range(300):
        question = game.reset(seed).text
        assert game.solution() == (str(evaluate(question)),), question


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_generated_numbers_stay_in_their_range(num_steps):
    source = random.Random(0)
    drawn = (
        draw_problem(source, max_number=20, num_steps=num_steps) for _ in "x" * 999
    )
    problems = [problem for problem in drawn if problem is not None]
    assert len(problems) > 100
    for problem in problems:
        assert all(int(n) <= 20 for n in re.findall(r"\d+", problem.question))
        assert 0 <= problem.answer <= 20 * 9


def test_no_generated_problem_is_in_both_splits_even_under_other_names():
    def keys(split):
        game = MathQA(split, num_steps=1, max_number=10)
        words = "|".join(r"\b" + word + r"\b" for word in (*NAMES, *THINGS))
        return {re.sub(words, "_", game.reset(seed).text) for seed in range(3000)}

    training, validation = keys("training"), keys("validation")
    assert len(training) > 200
    assert len(validation) > 20
    assert not training & validation


def test_later_attempts_are_announced_and_pay_half_as_much():
    game = MathQA(attempts=5)
    for wrong in range(5):
        game.reset(1)
        for _ in range(wrong):
            step = game.step("no")
            assert step.observation.text == "Incorrect. Please think again."
            assert not step.terminated
        step = game.step(game.solution()[0])
        assert step.reward == 0.5**wrong
        assert step.terminated
    game.reset(1)
    steps = [game.step("no") for _ in range(5)]
    assert [step.terminated for step in steps] == [False] * 4 + [True]
    assert steps[-1].observation.text == "Incorrect."
    assert "5 attempts" in game.instruction


def test_the_factor_of_later_attempts_is_an_option():
    game = MathQA(attempts=2, retry_factor=0.25)
    game.reset(0)
    game.step("no")
    assert game.step(game.solution()[0]).reward == 0.25


@settings(deadline=None)
@given(TEXTS)
def test_any_reply_is_answered(reply):
    game = MathQA()
    game.reset(0)
    step = game.step(reply)
    assert step.info["valid"] is bool(reply.strip())
    assert step.info["success"] is (math_judge.normalize(reply) == game.solution()[0])


def test_the_string_judge_ignores_case_and_blanks_alone():
    assert math_judge.strings_agree("A B", " ab\n")
    assert not math_judge.strings_agree("1/2", "0.5")
    assert not math_judge.strings_agree("", " ")


def test_questions_of_a_file(tmp_path):
    content = rows(*(f"question {i}" for i in range(60)))
    path = write_json(tmp_path / "data.json", content)
    games = [MathQA(split, path=path) for split in ("training", "validation")]
    assert sum(game.num_tasks for game in games) == 120
    originals = []
    for game in games:
        texts = [game.reset(0, task=task).text for task in range(game.num_tasks)]
        for task, text in enumerate(texts):
            game.reset(0, task=task)
            assert game.step(game.solution()[0]).reward == 1.0
            assert game.solution() == (str(len(text.split(": ")[1])),)
        assert {game.reset(seed).text for seed in range(2000)} == set(texts)
        originals.append({text.split(": ")[1] for text in texts})
    # Paraphrases never straddle.
    assert not originals[0] & originals[1]
    assert min(map(len, originals)) >= 2


def test_a_question_is_where_its_paraphrases_are(tmp_path):
    """Also where the original itself has no field that says so."""
    texts = [f"question {i}" for i in range(60)]
    content = rows(*texts) + [
        {"query": text.upper(), "response": "The answer is: 1"} for text in texts
    ]
    path = write_json(tmp_path / "data.json", content)
    questions = math_data.read_questions(path, "validation")
    names = {question.query.split(": ")[-1].lower() for question in questions}
    assert len(questions) == 3 * len(names)


def test_rows_without_an_answer_are_left_out_and_counted(tmp_path, caplog):
    content = rows(*(f"question {i}" for i in range(60)))
    content[0]["response"] = "I do not know."
    path = write_json(tmp_path / "data.json", content)
    split = math_data.split_of("question 0")
    kept = [q.query for q in math_data.read_questions(path, split)]
    assert "Say: question 0" not in kept
    assert "Tell me: question 0" in kept
    assert "1 rows without an answer" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "row 1 .* is of another form"),
        ('[{"query": "q"}]', "row 1 .* is of another form"),
        (
            '[{"query": "q", "response": "#### 1", "original_question": 5}]',
            "row 1 .* is of another form.*must be texts",
        ),
        ("[]", "no question for training"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        MathQA(path=str(tmp_path / "data.json"))


def test_a_task_that_is_not_there_is_refused(tmp_path):
    path = write_json(tmp_path / "data.json", rows(*(f"q {i}" for i in range(60))))
    game = MathQA(path=path)
    with pytest.raises(ValueError, match="use 0 to"):
        game.reset(0, task=game.num_tasks)


@pytest.fixture(scope="module")
def judge():
    need("math_verify")
    judge = math_judge.MathJudge(seconds=20)
    yield judge
    judge.close()


EQUAL = [
    ("1/2", "0.5"),
    (r"\frac{1}{2}", "0.5"),
    ("50", "50%"),
    ("1000", "1,000"),
    ("12", "12 apples"),
    ("12", "$12$"),
    (r"\sqrt{2}", "2^{1/2}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(1,2)", "(1, 2)"),
    ("seven", "Seven"),
    ("752", "752 dollars"),
    ("3", "3 apples"),
    ("10", "10 dogs."),
    ("5", "5 miles per hour"),
    ("752 dollars", "752"),
    ("2:30 p.m.", "2:30 pm"),
    ("2:30 p.m.", "2:30"),
    ("2:30 PM", "14:30"),
    ("12:05 am", "0:05"),
    ("1 dollar", "1 dollars"),
    ("752", "752 US dollars"),
    ("3 feet", "3 foot"),
    ("5 boxes", "5 box"),
    ("4 pennies", "4 penny"),
    ("5 km", "5 kilometers"),
    ("5 km", "5 KM"),
    ("5 h", "5 hr"),
    ("12 gm", "12 g"),
    ("caf\u00e9", "cafe\u0301"),
]
UNEQUAL = [
    ("7", "seven"),
    ("4", "3 or 4"),
    ("4", "3, 4, 5"),
    ("4", r"\boxed{3} \boxed{4}"),
    ("4", "5"),
    ("4", ""),
    ("4", "?"),
    ("4", "4" * 10_000),
    ("4", "\x00\ud800"),
    ("4", "{{{{"),
    ("3", "3 million"),
    ("6", "6 tens"),
    ("3", "3 sevenths"),
    ("5", ".5"),
    ("3 dollars", "3 cents"),
    ("5 km", "5 m"),
    ("5cm", "5 mm"),
    ("5 x", "5 y"),
    ("3", "3 pi"),
    ("0.5", "5"),
    ("2:30 p.m.", "2:30 am"),
    ("2:30 p.m.", "2:31 p.m."),
    ("2:30 PM", "4:60 PM"),
    ("2:30 pm", "2"),
    ("1/15", "2:30 pm"),
    ("14:30", "2:30 am"),
    ("3 boys", "3 boxes"),
    ("752", "725 dollars"),
]


@pytest.mark.parametrize(
    ("truth", "reply", "differ"),
    [
        ("5 h", "5 hr", False),
        ("5 hr", "5H", False),
        ("12 g", "12 gm", False),
        ("2 l", "2 lt", False),
        ("5 h", "5 m", True),
        ("5 x", "5 y", True),
        ("5 g", "5 hr", True),
    ],
)
def test_spellings_of_a_short_unit_are_the_same(truth, reply, differ):
    assert math_judge.short_units_differ(truth, reply) is differ


@pytest.mark.live
@pytest.mark.parametrize(("truth", "reply"), EQUAL)
def test_equal_answers(judge, truth, reply):
    assert judge.agree(truth, reply) is True


@pytest.mark.live
@pytest.mark.parametrize(("truth", "reply"), UNEQUAL)
def test_unequal_answers(judge, truth, reply):
    assert judge.agree(truth, reply) is False


@pytest.mark.live
@pytest.mark.parametrize("reply", ["9^{9^{9^{9}}}", "100000000!"])
def test_an_expression_that_hangs_is_wrong_counted_and_leaves_no_process(reply):
    need("math_verify")
    game = MathQA(judge="math", judge_seconds=1.0, attempts=3)
    assert game.metrics == ("undecided",)
    game.reset(0)
    assert game.step("-1").info["undecided"] == 0
    first = game._math._child.process
    start = time.monotonic()
    step = game.step(reply)
    assert time.monotonic() - start < 20
    assert step.info == {"success": False, "valid": True, "undecided": 1.0}
    assert first.poll() is not None
    # The next one is served by a new process.
    assert game.step(game.solution()[0] + ".0").info["success"]
    second = game._math._child.process
    game.close()
    assert second.poll() is not None


@pytest.mark.live
def test_a_process_that_has_died_is_started_again():
    need("math_verify")
    judge = math_judge.MathJudge(seconds=20)
    assert judge.agree("1", "1.0")
    judge._child.process.kill()
    judge._child.process.wait()
    assert judge.agree("1", "1.0")
    judge.close()


@pytest.mark.live
def test_judging_works_in_a_thread():
    """There `signal.alarm`, math-verify's own deadline, raises."""
    need("math_verify")
    judge = math_judge.MathJudge(seconds=20)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(judge.agree, "1/2", "0.5").result() is True
    judge.close()
