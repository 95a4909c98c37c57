"""Files of scores in one table: what is averaged, refused, and committed."""

import json
import pathlib
import re

import numpy as np
import pytest

from configs import leaderboard
from launch.leaderboard_page import make_leaderboard_page
from ragen_jax.evaluation.harness import describe as describe_entry
from ragen_jax.evaluation.harness import suite_configs
from ragen_jax.evaluation.leaderboard import (
    OWN,
    Row,
    describe,
    markdown,
    mean_success,
    read_board,
)
from ragen_jax.evaluation.results import Score
from ragen_jax.evaluation.statistics import summarize, wilson_interval
from ragen_jax.runs.markdown import escape
from ragen_jax.tasks.specs import make_env
from tests import commands

DOCS = pathlib.Path(__file__).parents[2] / "docs"
ENTRIES = ("Walk", "Run")
MADE = {"command": "python -m launch.evaluate --x", "ragen_jax": "0.1.0", "jax": "1"}
SUCCESS = np.array([[1, 0, 0, 1], [1, 1, 0, 0]], bool)


def scores_file(path, success=SUCCESS, played=None, entries=ENTRIES, **about):
    """A file of `launch.evaluate --json`; `success` is per entry and prompt."""
    evaluation = {"num_prompts": 4, "num_samples": 1, "seed": 123, "temperature": 0.5}
    about = {
        "policy": path.stem,
        "suite": "all",
        "evaluation": evaluation | about.pop("evaluation", {}),
        "prompt": {"style": "terse"},
        "context": ["full", None],
        "weights": f"digest of {path.stem}",
        **about,
    }
    rows = [
        {
            "name": name,
            "played": {"max_turns": 3, "max_reply_tokens": 24} | (played or {}),
            "note": "",
            "metrics": summarize(won[:, None], 1.0, ()),
            "seconds": 1.0,
            "wins": " ".join(str(int(x)) for x in won),
            "made": MADE,
        }
        for name, won in zip(entries, success, strict=False)
    ]
    path.write_text(json.dumps({"about": about, "scores": rows}))
    return path


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


def row_of(success):
    """A row of `[entries, prompts, samples]`."""
    scores = {}
    for i, won in enumerate(success):
        wins = " ".join(map(str, won.sum(axis=1)))
        scores[f"E{i}"] = Score(f"E{i}", {}, "", summarize(won, 1.0, ()), 1.0, wins)
    evaluation = {
        "num_prompts": success.shape[1],
        "num_samples": success.shape[2],
        "seed": 0,
    }
    return Row(pathlib.Path("x.json"), {"evaluation": evaluation}, scores)


def test_the_mean_is_over_entries_and_its_interval_over_prompts():
    rng = np.random.default_rng(0)
    success = rng.random((3, 50, 2)) < np.array([0.1, 0.5, 0.9])[:, None, None]
    mean = mean_success(row_of(success))
    by_prompt = success.mean(axis=(0, 2))
    share = by_prompt.mean()
    assert mean.success == pytest.approx(share)
    trials = share * (1 - share) / (by_prompt.var() / 50)
    # Entries that differ make the mean surer than as many like trials: not believed.
    assert trials > 50 * 3 * 2
    expected = wilson_interval(share * 300, 300)
    assert (mean.low, mean.high) == pytest.approx(expected)


def test_entries_with_the_same_levels_count_as_one():
    """Whoever wins a level of one entry wins it in all: as sure as one entry."""
    one = np.random.default_rng(1).random((1, 40, 1)) < 0.3
    alone, thrice = (mean_success(row_of(np.repeat(one, n, axis=0))) for n in (1, 3))
    assert (thrice.low, thrice.high) == pytest.approx((alone.low, alone.high))
    apart = np.random.default_rng(1).random((3, 40, 1)) < 0.3
    surer = mean_success(row_of(apart))
    assert surer.high - surer.low < 0.7 * (alone.high - alone.low)


def test_rows_are_ranked_and_players_without_a_model_are_not(tmp_path):
    scores_file(tmp_path / "b.json")
    scores_file(tmp_path / "a.json", SUCCESS | True)
    scores_file(tmp_path / "random.json", SUCCESS[:1], player="random")
    board = read_board([tmp_path])
    assert [(rank, row.name) for rank, row, _ in board.places()] == [
        (1, "a"),
        (2, "b"),
        (None, "random"),
    ]
    assert [str(mean)[:5] for mean in board.means] == ["100.0", "50.0%", "50.0%"]
    text = markdown(board)
    assert "| 1 | a | 100.0% (51.0% to 100.0%) | 2 of 2 |" in text
    assert "| – | random | 50.0% (15.0% to 85.0%) | 1 of 2 |" in text
    assert "| Run | 100.0% | 100.0% (51.0% to 100.0%) | 50.0% (15.0% to 85.0%) | n/a |"
    assert "* replies: sampled at 0.5, up to 24 tokens" in text
    assert "    python -m launch.evaluate --x\n" in text
    assert "suite all: 4 held-out prompts each, 1 episode of a prompt, seed 123" in text


def test_the_order_of_the_files_does_not_matter(tmp_path):
    paths = [scores_file(tmp_path / f"{name}.json") for name in "cab"]
    boards = [read_board(paths), read_board(paths[::-1]), read_board([tmp_path])]
    assert len({markdown(board) for board in boards}) == 1
    assert len({make_leaderboard_page(board) for board in boards}) == 1


def test_files_of_earlier_versions_are_read(tmp_path):
    path = scores_file(tmp_path / "old.json")

    def forget(content):
        for score in content["scores"]:
            del score["wins"], score["made"]

    board = read_board([change(path, forget)])
    assert str(board.means[0]) == "50.0% (interval unknown)"
    text = markdown(board)
    assert "* versions: unknown" in text
    assert "Command: unknown." in text
    assert "Command unknown." in make_leaderboard_page(board)


def test_what_belongs_to_the_policy_may_differ(tmp_path):
    scores_file(tmp_path / "a.json")
    own = {"prompt": {"style": "full"}, "context": ["single_turn", 2]}
    longer = {"max_reply_tokens": 400}
    greedy = {"temperature": 0}
    scores_file(tmp_path / "b.json", played=longer, evaluation=greedy, **own)
    text = markdown(read_board([tmp_path]))
    assert "* replies: greedy, up to 400 tokens" in text
    assert "* context: single\\_turn, the last 2 turns" in text


def of_three(change_of_c):
    def build(folder):
        for name in "ab":
            scores_file(folder / f"{name}.json")
        scores_file(folder / "c.json", **change_of_c)

    return build


def edited(edit):
    return lambda folder: change(scores_file(folder / "c.json"), edit)


def twice(folder):
    scores_file(folder / "a.json", weights="same")
    scores_file(folder / "c.json", weights="same")


def other_prompts_of_one_policy(folder):
    scores_file(folder / "a.json")
    scores_file(folder / "b.json", weights="same")
    scores_file(folder / "c.json", weights="same", evaluation={"seed": 7})


def namesakes(folder):
    (folder / "x").mkdir()
    scores_file(folder / "c.json")
    scores_file(folder / "x/c.json")


def set_wins(wins):
    return edited(lambda content: content["scores"][0].update(wins=wins))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (of_three({"suite": "bandit"}), r'c.json .* suite = "bandit", .* with "all"'),
        (
            of_three({"evaluation": {"seed": 7}}),
            r"c.json was played with evaluation.seed = 7, other files with 123; a t",
        ),
        (of_three({"played": {"max_turns": 5}}), r"Walk: max_turns = 5, .* with 3"),
        (of_three({"played": {"rows": 8}}), r"Walk: rows = 8, .* with nothing"),
        (of_three({"entries": ("Walk",)}), r"c.json lacks Run, which other files have"),
        (twice, r"a.json and .*c.json are of the same policy under the same settings"),
        (namesakes, r"c.json and .*x/c.json have the same name"),
        (set_wins("1 1 0 1"), r"the wins of Walk are not those of 4 prompts with a"),
        (set_wins("1 0 1"), r"the wins of Walk are not"),
        (set_wins("2 0 0 0"), r"the wins of Walk are not"),
        (set_wins("1 0 x 1"), r"the wins of Walk are not"),
        (edited(lambda c: c["about"].pop("policy")), r"its policy is None; leave it"),
        (edited(lambda c: c["about"].update(prompt=3)), r"its prompt is 3; leave it"),
        (edited(lambda c: c["scores"].clear()), r"has no scores, or lacks one of num_"),
        (
            edited(lambda c: c["about"]["evaluation"].update(num_samples=0)),
            r"has no scores, or lacks one of num_",
        ),
        (
            edited(lambda c: c["scores"][0]["metrics"].update(success=float("nan"))),
            r"success of Walk is nan: not a share",
        ),
        (
            edited(lambda c: c["scores"][0]["metrics"].update(success_low=0.9)),
            r"success of Walk is .*outside its interval",
        ),
        (
            edited(lambda c: c["scores"][0]["metrics"].update(ceiling=float("inf"))),
            r"ceiling of Walk is .*: not a share",
        ),
        (
            edited(lambda c: c["scores"][0]["metrics"].update(ceiling=10**400)),
            r"ceiling of Walk is .*: not a share",
        ),
        (
            edited(lambda c: c["scores"][0]["played"].update({OWN: None})),
            r"max_reply_tokens of Walk is None: .* not a whole number",
        ),
        (
            edited(lambda c: c["scores"].append(c["scores"][0])),
            r"c.json has an entry twice",
        ),
        (set_wins("9" * 5000 + " 0 0 0"), r"the wins of Walk are not"),
        (
            edited(lambda c: c["about"]["evaluation"].update(num_samples=10**12)),
            r"the wins of Walk are not",
        ),
        # The same policy, under another setting of the measurement.
        (other_prompts_of_one_policy, r"seed = 7, other files with 123"),
        (edited(dict.clear), r"c.json is not a file of scores .*; leave it out"),
    ],
)
def test_what_cannot_stand_in_one_table_is_refused(tmp_path, build, message):
    build(tmp_path)
    with pytest.raises(ValueError, match=message):
        read_board(sorted(tmp_path.rglob("*.json")))


def test_names_of_others_are_no_markup(tmp_path):
    name = "<b>&x|`_"
    scores_file(tmp_path / f"{name}.json", policy="<script>alert(1)</script>\n# Top")
    board = read_board([tmp_path])
    page, text = make_leaderboard_page(board), markdown(board)
    assert "<b>" not in page
    assert "<script>alert" not in page
    assert "\\<script\\>alert(1)\\</script\\> \\# Top" in text
    assert escape(name) in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name at least one file of launch.evaluate --json, or a folder of them"),
        (["missing.json"], "missing.json does not exist"),
        (["configs"], "configs holds no *.json"),
        (["benchmarks/results"], "is not a file of scores"),
        (["docs/leaderboard", "--nope"], "nope"),
    ],
)
def test_errors_are_one_sentence(words, said):
    assert said in commands.refusal("leaderboard", *words)


def test_the_command_writes_a_page_and_a_table(tmp_path):
    scores_file(tmp_path / "a.json")
    page, table = tmp_path / "new/board.html", tmp_path / "new/board.md"
    words = (str(tmp_path), f"--output={page}", f"--table={table}")
    done = commands.call(commands.command("leaderboard", *words))
    assert done.returncode == 0, done.stderr
    assert "  1  50.0% (21.5% to 78.5%)  a\n" in done.stdout
    board = read_board([tmp_path])
    assert page.read_text() == make_leaderboard_page(board)
    assert table.read_text() == markdown(board)


def test_more_than_best_play_expects_may_be_won(tmp_path):
    path = scores_file(tmp_path / "a.json")
    content = json.loads(path.read_text())
    for score in content["scores"]:
        won = np.array(score["wins"].split(), int)[:, None] > 0
        score["metrics"] = summarize(won, 0.25, ())
        assert score["metrics"]["regret"] < 0
    path.write_text(json.dumps(content))
    assert len(read_board([path]).rows) == 1


@pytest.mark.parametrize("flags", [["--table=a.json"], ["--table=x", "--output=x"]])
def test_no_scores_are_written_over(tmp_path, flags):
    text = scores_file(tmp_path / "a.json").read_text()
    flags = [flag.replace("=", f"={tmp_path}/") for flag in flags]
    said = commands.refusal("leaderboard", str(tmp_path), *flags)
    assert "name another file to write" in said
    assert (tmp_path / "a.json").read_text() == text


def test_all_entries_of_players_without_a_model_are_shown(tmp_path):
    for name, entries in (("a", ("Walk", "Run")), ("b", ("Jump",))):
        scores_file(tmp_path / f"{name}.json", entries=entries, player=name)
    assert read_board([tmp_path]).entries == ["Walk", "Run", "Jump"]


@pytest.mark.parametrize("preset", ["pocket", "qwen2.5-0.5b", "qwen3-8b"])
def test_the_configuration_measures_what_the_committed_rows_are_of(preset):
    """Models of any size; and no row is of an entry that has changed since."""
    pairs = suite_configs(leaderboard.get_config(preset), "all", ())
    now = {
        entry.name: describe_entry(config, entry.spec, make_env(entry.spec)[0])
        for config, entry in pairs
    }
    evaluation = pairs[0][0].evaluation
    for row in read_board([DOCS / "leaderboard"]).rows:
        for name, score in row.scores.items():
            assert json.loads(json.dumps(now[name])) | {OWN: 0} == score.played | {
                OWN: 0
            }
        assert row.about["evaluation"]["num_prompts"] == evaluation.num_prompts


def test_the_committed_table_is_that_of_the_committed_files():
    """`python -m launch.leaderboard docs/leaderboard --table=... --output=...`."""
    board = read_board([DOCS / "leaderboard"])
    assert (DOCS / "leaderboard.md").read_text() == markdown(board)
    assert (DOCS / "leaderboard.html").read_text() == make_leaderboard_page(board)
    names = {row.name for row in board.rows}
    assert names >= {"pocket", "pocket-after-make-train", "solver", "random"}
    assert board.rows[0].about["suite"] == "all"
    assert describe(board) in make_leaderboard_page(board).replace("&#x27;", "'")
    for row in board.rows:
        assert row.commands
        assert not re.search(r"(^|[ =])/", " ".join(row.commands)), "a machine's path"
