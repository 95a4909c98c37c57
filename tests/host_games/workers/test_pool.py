"""Worker processes: whatever a game does to its own, nothing happens to others."""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest

from ragen_jax.host_games.workers.episodes import play_rows
from ragen_jax.host_games.workers.pool import GameSpec, Pool, _parse
from tests.host_games.games import FAULTS

FAULTY = "tests.host_games.games:Faulty"
LIMITS = {"step_seconds": 3.0, "max_bytes": 2**30}
REASONS = {
    "raise": "RuntimeError: broken on purpose (",
    "hang": "no answer within 3 s (host.step_seconds)",
    "leave": "its process ended with status 3",
    "die": "its process ended, killed by SIGKILL",
    "fill": "MemoryError: ",
    "write": "an answer that cannot be read: ",
    "pay nan": "Faulty: a reward must be finite",
    "answer too much": "an answer that cannot be read: ",
    # The child holds the pipe open.
    "leave a child": "its process ended with status 0",
}


@pytest.fixture
def make_pool():
    pools, before = [], workers()

    def make(num_rows, num_workers=2, game=FAULTY, **kwargs):
        spec = GameSpec(game, kwargs, num_workers=num_workers, **LIMITS)
        pools.append(Pool(spec, "training", num_rows))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    assert set(workers()) <= set(before)


def workers():
    """Processes that play games, or were started by one."""
    found = subprocess.run(
        ["pgrep", "-f", "ragen_jax.host_games.workers.worker"],
        capture_output=True,
        text=True,
        check=False,
    )
    mine = {int(word) for word in found.stdout.split()}
    # Tests beside this one may have some, too.
    here = pathlib.Path("/proc/self").resolve().name
    return [pid for pid in mine if _parents(pid) & {int(here)}]


def _parents(pid):
    found = set()
    while pid > 1:
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            break
        pid = int(stat.rsplit(")", 1)[1].split()[1])
        found.add(pid)
    return found


def test_games_are_played(make_pool):
    pool = make_pool(5)
    opening = pool.reset(range(5), [None] * 5)
    assert [answer.text for answer in opening] == [f"seed {i}" for i in range(5)]
    for count in (1, 2, 3):
        answers = pool.step({row: f"word {row}" for row in (0, 3)})
        assert [answers[row].text for row in (0, 3)] == [
            f"seed {row} count {count} word {row}" for row in (0, 3)
        ]
    assert answers[3].terminated
    assert answers[3].info["success"] == 1.0
    assert pool.reset([7] * 5, [None] * 5)[3].text == "seed 7"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_its_row_and_no_other(make_pool, fault):
    pool = make_pool(6)
    pool.reset(range(6), [None] * 6)
    pool.step(dict.fromkeys(range(6), "first"))
    answers = pool.step({row: fault if row == 2 else "second" for row in range(6)})
    assert answers[2].failure.startswith(REASONS[fault]), answers[2].failure
    assert answers[2].is_over
    last = pool.step({row: "third" for row in range(6) if row != 2})
    for row in set(range(6)) - {2}:
        assert answers[row].text == f"seed {row} count 2 second"
        assert last[row].text == f"seed {row} count 3 third"
    # The row plays again after a reset.
    assert pool.reset(range(6), [None] * 6)[2].text == "seed 2"


def test_a_game_that_cannot_begin_fails_alone(make_pool):
    pool = make_pool(3, start_fault="raise")
    answers = pool.reset(range(3), [None] * 3)
    assert all("broken on purpose" in answer.failure for answer in answers)


def test_a_game_that_does_not_begin_in_time_says_what_to_raise():
    faulty = {"start_fault": "hang"}
    spec = GameSpec(FAULTY, faulty, num_workers=1, start_seconds=2.0)
    with contextlib.closing(Pool(spec, "training", 1)) as pool:
        (answer,) = pool.reset([0], [None])
    assert answer.failure == "no answer within 2 s while starting (host.start_seconds)"


def test_an_observation_that_is_too_large_says_so(make_pool):
    pool = make_pool(1, 1, "tests.host_games.games:Huge")
    (output,) = pool.reset([0], [None])
    assert re.fullmatch(
        r"an observation takes 1[0-9],\d{3},\d{3} bytes, .* may take 8,000,000; .*",
        output.failure,
    )


def test_a_class_that_does_not_exist_is_a_failure(make_pool):
    pool = make_pool(2, game="tests.host_games.games:Missing")
    (first, _) = pool.reset([0, 1], [None, None])
    assert "has no attribute 'Missing'" in first.failure


HALF = """
import half_made.parts
half_made.parts.attempts += 1
if half_made.parts.attempts == 1:
    raise {error}
from tests.host_games.adapters.ragen_environments import SumEnv
from tests.host_games.games import Faulty
"""


@pytest.mark.parametrize("error", ["OSError('no card')", "ImportError('no card')"])
@pytest.mark.parametrize(
    ("game", "kwargs"),
    [
        ("half_made:Faulty", {}),
        ("ragen_jax.host_games.adapters.ragen:RagenGame", {"env": "half_made:SumEnv"}),
        ("tests.host_games.games:Imports", {"module": "half_made"}),
    ],
)
def test_an_import_that_has_failed_fails_for_all_rows(
    make_pool, tmp_path, monkeypatch, game, kwargs, error
):
    """Python would import such a package at the second attempt."""
    package = tmp_path / "half_made"
    package.mkdir()
    (package / "__init__.py").write_text(HALF.format(error=error))
    (package / "parts.py").write_text("attempts = 0")
    monkeypatch.syspath_prepend(tmp_path)
    pool = make_pool(3, num_workers=1, game=game, **kwargs)
    for _ in range(2):
        failures = {x.failure for x in pool.reset(range(3), [None] * 3)}
        (sentence,) = failures
        assert sentence is not None
        assert "no card" in sentence


def test_an_import_is_tried_again_with_the_next_episodes(
    make_pool, tmp_path, monkeypatch
):
    """What made it fail may have passed; it needs a new process."""
    (tmp_path / "late_module.py").write_text(
        f"import pathlib\npath = pathlib.Path({str(tmp_path / 'x')!r})\n"
        "if not path.exists():\n    path.touch()\n    raise OSError('no memory')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    game = "tests.host_games.games:Imports"
    pool = make_pool(3, num_workers=1, game=game, module="late_module")
    failures = {answer.failure for answer in pool.reset(range(3), [None] * 3)}
    (sentence,) = failures
    assert "OSError: no memory" in sentence
    answers = pool.reset(range(3), [None] * 3)
    assert [answer.failure for answer in answers] == [None] * 3
    assert pool.step({0: "a", 2: "b"})[2].text == "seed 2 count 1 b"


def test_a_game_that_cannot_be_made_once_may_be_the_next_time(make_pool, tmp_path):
    """A server that it needs may be busy."""
    pool = make_pool(
        2, num_workers=1, game="tests.host_games.games:Late", path=str(tmp_path / "x")
    )
    first, second = pool.reset(range(2), [None] * 2)
    assert "ConnectionError: busy" in first.failure
    assert second.failure is None


def test_a_fork_that_comes_back_answers_nothing(make_pool):
    pool = make_pool(4, num_workers=1, game="tests.host_games.games:Forks")
    pool.reset(range(4), [None] * 4)
    for count in (1, 2, 3):
        answers = pool.step(dict.fromkeys(range(4), f"word {count}"))
        assert [answers[row].text for row in range(4)] == [
            f"seed {row} count {count} word {count}" for row in range(4)
        ]


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("game", ["LeavesOrphans", "LeavesStrangers"])
def test_processes_with_a_session_of_their_own_end_with_the_pool(make_pool, game, end):
    mark = f"{__name__}-{os.getpid()}-{end}-{game}"
    game = f"tests.host_games.games:{game}"
    pool = make_pool(2, num_workers=1, game=game, mark=mark)
    pool.reset(range(2), [None] * 2)
    pool.step(dict.fromkeys(range(2), "a word"))
    # A new process takes a moment to have its words.
    _wait_for(2, mark)
    if end == "close":
        pool.close()
    else:
        pool._workers[0].stop()
    # A killed process takes a moment to go.
    _wait_for(0, mark)


def _wait_for(num_running, mark):
    deadline = time.monotonic() + 10
    while len(_running(mark)) != num_running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_running(mark)) == num_running


def _running(mark):
    names = pathlib.Path("/proc").glob("[0-9]*/cmdline")
    return [name for name in names if _read(name).endswith(f"{mark}\0".encode())]


def _read(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_player_is_asked_only_while_an_episode_goes_on(make_pool):
    asked = []

    def player(episodes):
        asked.append(sorted(episodes))
        return dict.fromkeys(episodes, "a word")

    pool = make_pool(2)
    episodes = play_rows(pool, [1, 2], [None] * 2, player, max_turns=9)
    assert [len(episode) for episode in episodes] == [4, 4]
    assert asked == [[0, 1]] * 3


def test_what_all_games_need_is_worked_out_once(make_pool, tmp_path):
    path = tmp_path / "made"
    for _ in range(2):
        pool = make_pool(4, game="tests.host_games.games:Shares", path=str(path))
        answers = pool.reset(range(4), [None] * 4)
        assert [answer.text for answer in answers] == [
            f"seed {row} and 7" for row in range(4)
        ]
    assert path.read_text() == "x"


def test_an_answer_that_nests_too_deeply_is_no_answer():
    """A process can write anything into the pipe; it ends its row, not the run."""
    with pytest.raises(ValueError, match="nested too deeply"):
        _parse(b"[" * 100_000, 1)
    answer = _parse(
        b'{"number": 1, "observation": "", "reward": 1%s}' % (b"0" * 400), 1
    )
    assert "not a finite number" in answer.failure


def test_text_that_no_encoding_holds_becomes_one_that_does(make_pool):
    pool = make_pool(1, game="tests.host_games.games:HalfLetters")
    (opening,) = pool.reset([3], [None])
    assert opening.text == "seed 3 ? é 🎲"


@pytest.mark.slow
def test_faults_at_any_moment(make_pool):
    """Each fault in any order: rows without one play as if they were alone."""
    draw = random.Random(0)
    pool = make_pool(8, num_workers=4)
    quick = [fault for fault in FAULTS if fault != "hang"]
    faults = ["hang", *quick * 4]
    draw.shuffle(faults)
    while faults:
        seeds = [draw.randrange(1000) for _ in range(8)]
        alive = dict(enumerate(seeds))
        pool.reset(seeds, [None] * 8)
        for count in (1, 2, 3):
            replies = {
                row: faults.pop() if faults and draw.random() < 0.3 else "fine"
                for row in alive
            }
            answers = pool.step(replies)
            for row, reply in replies.items():
                if reply in FAULTS:
                    assert answers[row].failure.startswith(REASONS[reply])
                    del alive[row]
                else:
                    text = f"seed {seeds[row]} count {count} fine"
                    assert answers[row].text == text


def test_killing_a_worker_from_outside(make_pool):
    before = set(workers())
    pool = make_pool(4, num_workers=1)
    pool.reset(range(4), [None] * 4)
    pool.step(dict.fromkeys(range(4), "first"))
    (worker,) = set(workers()) - before
    subprocess.run(["kill", f"-{int(signal.SIGKILL)}", str(worker)], check=True)
    answers = pool.step(dict.fromkeys(range(4), "second"))
    lost = [row for row in range(4) if answers[row].failure is not None]
    assert lost == [0]
    assert [answers[row].text for row in (1, 2, 3)] == [
        f"seed {row} count 2 second" for row in (1, 2, 3)
    ]


def test_solutions_are_asked_for_and_change_nothing(make_pool):
    pool = make_pool(4, game="ragen_jax.host_games.echo:Echo", num_words=4)
    shown = pool.reset([3, 4, 5, 6], [None] * 4)
    solutions = pool.solve([0, 2])
    assert solutions.keys() == {0, 2}
    for row, answer in solutions.items():
        assert answer.solution == (shown[row].text.split()[-1],)
        assert not answer.is_over
    # After a kill the worker's rows are brought back without it.
    for worker in pool._workers:
        worker.stop()
    replies = {row: shown[row].text.split()[-1] for row in range(4)}
    assert all(answer.info["success"] for answer in pool.step(replies).values())
