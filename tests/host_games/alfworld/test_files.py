"""Games from files: folders, splits, names, walkthroughs, grammars, what is refused."""

import json

import pytest

from ragen_jax.host_games.alfworld import files
from ragen_jax.host_games.alfworld.check import check
from ragen_jax.host_games.alfworld.files import find_games, read_game
from ragen_jax.host_games.alfworld.game import NOTHING, Alfworld
from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION
from ragen_jax.host_games.common import shared
from tests.host_games.alfworld.small import MANGLED, grammar_of, small, solved


def put(folder, path, content):
    file = folder / path / "game.tw-pddl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def first_line(game, **where):
    return game.reset(0, **where).text.partition("\n")[0]


# --- folders


def test_files_are_played_as_the_houses_they_hold(tmp_path):
    for seed in range(5):
        put(tmp_path, f"train/{seed}", solved(seed))
    game, invented = Alfworld(data=str(tmp_path)), Alfworld()
    assert game.num_tasks == 5
    assert game.is_solvable is False
    assert "desk 1" in game.instruction
    assert "desk 1" not in invented.instruction
    for seed in range(5):
        assert game.reset(99, task=seed) == invented.reset(seed) == game.reset(5 + seed)
        assert game.solution() == invented.solution()
        for reply in game.solution():
            step = game.step(reply)
            assert step == invented.step(reply)
        assert step.info["success"]


def test_games_are_in_alphabetical_order(tmp_path):
    for seed, path in enumerate(["train/b/y", "train/b/x", "train/a", "train/b-c/x"]):
        put(tmp_path, path, solved(seed))
    found = find_games(str(tmp_path), TRAINING)
    where = [path.removeprefix(str(tmp_path)) for path in found]
    order = ["train/a", "train/b/x", "train/b/y", "train/b-c/x"]
    assert where == [f"/{path}/game.tw-pddl" for path in order]


def test_folders_name_their_split(tmp_path):
    paths = {"train/a": 0, "valid_seen/a": 1, "valid_unseen/b": 2}
    paths["valid_train/train/c"] = 3
    for path, seed in paths.items():
        put(tmp_path, path, solved(seed))
    for split, seeds in ((TRAINING, {0, 3}), (VALIDATION, {1, 2})):
        game = Alfworld(split, data=str(tmp_path))
        texts = {first_line(game, task=task) for task in range(game.num_tasks)}
        assert texts == {first_line(Alfworld(), task=seed) for seed in seeds}
    # Also where the folder itself is named.
    assert len(find_games(str(tmp_path / "valid_seen"), VALIDATION)) == 1
    with pytest.raises(ValueError, match="no solvable game for training among 1 files"):
        find_games(str(tmp_path / "valid_seen"), TRAINING)


@pytest.mark.slow
def test_other_folders_are_dealt_by_problem(tmp_path):
    for seed in range(80):
        put(tmp_path, f"games/{seed}", solved(seed))
        # The same game again: it may not be in the other split.
        put(tmp_path, f"copies/{seed}", solved(seed) | {"walkthrough": None})
    found = {split: find_games(str(tmp_path), split) for split in SPLITS}
    assert sum(map(len, found.values())) == 160
    problems = {
        split: {read_game(path)["pddl_problem"] for path in paths}
        for split, paths in found.items()
    }
    assert not problems[TRAINING] & problems[VALIDATION]
    # A tenth of 80, within about four standard deviations.
    assert 1 <= len(problems[VALIDATION]) <= 19


def test_games_that_are_not_said_to_be_solvable_are_left_out(tmp_path):
    for number, solvable in enumerate([True, False, None, "yes"]):
        put(tmp_path, f"train/{number}", solved(0) | {"solvable": solvable})
    assert len(find_games(str(tmp_path), TRAINING)) == 1


def test_other_files_are_no_games(tmp_path):
    put(tmp_path, "train/a", solved(0))
    (tmp_path / "train/a/traj_data.json").write_text("{}")
    assert len(find_games(str(tmp_path), TRAINING)) == 1


def test_a_broken_file_is_left_out(tmp_path, caplog):
    for number in range(12):
        put(tmp_path, f"train/{number}", solved(0))
    (tmp_path / "train/3/game.tw-pddl").write_text('{"solvable": tr')
    assert Alfworld(data=str(tmp_path)).num_tasks == 11
    (line,) = caplog.messages
    assert line.startswith("1 of 12 files are left out: file ")
    assert "train/3/game.tw-pddl is not JSON" in line


def count_reads(monkeypatch):
    read = []
    plain = files.read_game
    monkeypatch.setattr(files, "read_game", lambda x: read.append(x) or plain(x))
    return read


def test_a_folder_is_read_once_for_both_splits_and_all_processes(tmp_path, monkeypatch):
    data = tmp_path / "games"
    for path in ("train/a", "train/b", "valid_seen/c"):
        put(data, path, solved(0))
    read = count_reads(monkeypatch)
    found = {split: find_games(str(data), split) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [2, 1]
    assert len(read) == 3
    # A worker starts as this process would after it has forgotten all.
    find_games.cache_clear()
    assert {split: find_games(str(data), split) for split in SPLITS} == found
    assert len(read) == 3
    # Another folder of shared values is that of another process.
    monkeypatch.setenv(shared.FOLDER, str(tmp_path))
    find_games.cache_clear()
    assert find_games(str(data), TRAINING) == found[TRAINING]
    assert len(read) == 6


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is not JSON: "), ("[]", "holds a list"), ("\ud800", "is not JSON")],
)
def test_files_that_are_no_games_are_refused_at_once(tmp_path, content, words):
    file = put(tmp_path, "train/a", "")
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=words):
        Alfworld(data=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grammar": None}, "a/game.tw-pddl cannot be played: .* no text 'grammar'"),
        ({"pddl_domain": "(define"}, "cannot be played: the domain is not PDDL"),
        ({"pddl_problem": "()"}, "cannot be played: the problem is not of the form"),
        ({"grammar": "action go {}"}, "the action go of the grammar has no template"),
        ({"grammar": 'grammar :: """{}""";'}, "no rule for the symbol #intro#"),
        ({"walkthrough": "look"}, "the walkthrough is not a list of commands"),
        ({"walkthrough": [1]}, "the walkthrough is not a list of commands"),
    ],
)
def test_games_that_cannot_be_played_name_their_file(tmp_path, change, words):
    put(tmp_path, "train/a", solved(0) | change)
    game = Alfworld(data=str(tmp_path))
    with pytest.raises(ValueError, match=words):
        game.reset(0)


def test_tasks_are_those_of_the_files(tmp_path):
    put(tmp_path, "train/a", solved(0))
    game = Alfworld(data=str(tmp_path))
    for task in (-1, 1):
        with pytest.raises(ValueError, match=f"task is {task}; use 0 to 0"):
            game.reset(0, task=task)


# --- walkthroughs


def test_what_is_left_of_a_walkthrough_is_the_solution(tmp_path):
    content = solved(0)
    put(tmp_path, "train/a", content)
    game = Alfworld(data=str(tmp_path))
    game.reset(0)
    first, *rest = content["walkthrough"]
    assert list(game.solution()) == [first, *rest]
    game.step("nonsense")
    assert list(game.solution()) == [first, *rest]
    game.step(first)
    assert list(game.solution()) == rest
    game.step("look")
    assert game.solution() == ()


def test_walkthroughs_may_name_objects_as_the_problem_does(tmp_path):
    mangled = MANGLED["mug"].lower()
    plans = [["take mug 1 from desk"], [f"take {mangled}  from desk"]]
    for number, plan in enumerate(plans):
        content = small(grammar_of("Hello."), walkthrough=plan)
        put(tmp_path, f"train/{number}", content)
    game = Alfworld(data=str(tmp_path))
    for task in range(2):
        game.reset(0, task=task)
        assert game.solution() == ("take mug 1 from desk",)
        assert game.step(game.solution()[0]).info["success"]


def test_two_moves_with_one_command_are_the_first(tmp_path):
    put(tmp_path, "train/a", small(grammar_of("Hello.", template="take it")))
    game = Alfworld(data=str(tmp_path))
    assert game.reset(0).text.endswith("[take it, wait]")
    assert game.step("TAKE IT").info == {"success": False, "valid": True}
    assert game.step("take it").info["success"]
    assert game.reset(0).text == "Hello.\nAdmissible actions: [take it, wait]"
    assert game.step("take").observation.text.startswith(NOTHING)


# --- checking a folder


def test_walkthroughs_that_do_not_win_are_listed(tmp_path):
    good = solved(0)
    put(tmp_path, "train/good", good)
    lost = put(tmp_path, "train/lost", good | {"walkthrough": good["walkthrough"][:-1]})
    none = put(tmp_path, "train/none", good | {"walkthrough": None})
    broken = put(tmp_path, "train/broken", good | {"pddl_domain": "()"})
    nothing = good | {"walkthrough": ["x", *good["walkthrough"]]}
    put(tmp_path, "valid_seen/nothing", nothing)
    assert list(check(str(tmp_path))) == [
        f"{broken} cannot be played: the domain is not of the form "
        "(define (domain ...) ...)",
        f"{lost} its walkthrough does not win",
        f"{none} has no walkthrough",
        "training: 1 of 4 walkthroughs win",
        "validation: 1 of 1 walkthroughs win",
    ]
