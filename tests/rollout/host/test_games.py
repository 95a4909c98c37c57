"""Host games between the turns of a rollout, against playing them by hand."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import PlayBudget
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.diagnostics.timing import compilations
from ragen_jax.host_games.workers.pool import Pool, WorkerResponse
from ragen_jax.rollout.collect import GivenSettings
from ragen_jax.rollout.host.env import make_host_game
from ragen_jax.rollout.host.games import (
    HostCollector,
    encode_plain,
    show_failed,
    take_outputs,
)
from ragen_jax.rollout.host.loop import TokenGame, make_token_game
from ragen_jax.rollout.host.rows import GamesFailed, answer_in, draw_problems
from ragen_jax.rollout.keys import rollout_keys, spread_levels, validation_keys
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.metrics import FAILED_ROWS, rollout_metrics
from ragen_jax.rollout.numbers import rollout_numbers
from ragen_jax.rollout.records import episodes
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.dialogue import build_dialogue
from ragen_jax.text.endings import find_answer_end
from ragen_jax.types import TokenSpan
from tests.host_games.games import Faulty
from tests.rollout import players

BUDGET = PlayBudget(max_turns=4, max_actions_per_turn=1, max_actions_per_episode=4)
LIMITS = EpisodeLimits(BUDGET, players.REPLY_TOKENS, format_penalty=-0.1)
SETTINGS = {
    "wrappers": (),
    "max_observation_tokens": 64,
    "image_grid": None,
    "num_widths": 4,
    "num_workers": 2,
    "start_seconds": 60.0,
    "step_seconds": 20.0,
    "max_worker_bytes": None,
    "max_failed_fraction": 0.9,
}
KEY = jax.random.key(5)
SOUND = ("go", "left || right", "fine")
PROGRAMS: dict[tuple[int, int, int], TokenGame] = {}


@functools.cache
def host_game(broken_word=None, **changes):
    """`Faulty`; the reply `broken_word` kills its process."""
    kwargs = {"broken_word": broken_word}
    return make_host_game("tests.host_games.games:Faulty", kwargs, **SETTINGS | changes)


@functools.cache
def dialogue(game):
    return build_dialogue(
        game,
        players.tokenizer(),
        budget=BUDGET,
        max_reply_tokens=players.REPLY_TOKENS,
        style="terse",
        tokenization="rows",
        length_hint_words=100,
    )


@functools.cache
def speaker_params(answers):
    """Parameters that mostly write these answers, or none."""
    encode = players.tokenizer().encode
    bias = np.zeros((players.VOCAB, players.VOCAB), np.float32)
    before = encode("<|im_start|>assistant\n<think>")[-1]
    written = [f"</think><answer>{answer}</answer><|im_end|>" for answer in answers]
    for text in (*written, "go go"):
        for first, second in itertools.pairwise([before, *encode(text)]):
            bias[first, second] = 12
    params = jax.jit(players.speaker().init)(jax.random.key(7))
    return params | {"bias": jnp.asarray(bias)}


@functools.cache
def collector(game, num_groups=4, group_size=3, **params):
    made = HostCollector(
        game,
        game.default_params.replace(**params),
        players.speaker(),
        tokenizer=players.tokenizer(),
        mesh=make_mesh(data=1, fsdp=1, tensor=1),
        num_groups=num_groups,
        group_size=group_size,
        rules=LIMITS,
        temperature=players.TEMPERATURE,
        top_k=None,
        top_p=None,
        decode_chunk_tokens=4,
    )
    # Programs are of a game's sizes: those of the first such game are compiled.
    sizes = game.max_observation_tokens, game.num_widths, group_size
    made._game = PROGRAMS.setdefault(sizes, made._game)
    return made


@functools.cache
def rollout(**changes):
    game = host_game(**changes)
    keys = rollout_keys(jax.random.key(5), 4, 3)
    return jax.device_get(collector(game)(speaker_params(SOUND), dialogue(game), keys))


def records(trajectory):
    prompts = dialogue(host_game()).prompts
    return episodes(trajectory, players.tokenizer(), prompts, None)


def asked(turn):
    """The answer of a recorded turn as its game gets it; None without one."""
    head, mark, rest = turn["reply"].partition("</think><answer>")
    answer, end, _ = rest.partition("</answer>")
    is_one = mark and end and answer.replace("||", "").strip()
    return answer.strip() if is_one and not head.strip("<think>") else None


def test_every_row_is_the_game_played_by_hand():
    """The same answers to the same game, in this process, lead to the same episode."""
    trajectory = rollout()
    keys = rollout_keys(jax.random.key(5), 4, 1)
    seeds, _ = draw_problems(keys, None)
    num_asked = 0
    for row, record in enumerate(records(trajectory)):
        game = Faulty("training")
        shown, is_over = game.reset(seeds[row // 3]).text, False
        for turn in record["turns"]:
            assert not is_over
            assert f"\n{shown}\n" in turn["observation"]
            answer = asked(turn)
            if answer is None:
                assert turn["penalty"] == pytest.approx(-0.1)
                assert turn["reward"] == 0.0
                continue
            num_asked += 1
            step = game.step(answer)
            shown, is_over = step.observation.text, step.terminated
            assert turn["reward"] == pytest.approx(step.reward)
            assert turn["penalty"] == 0.0
        assert record["success"] == record["terminated"] == is_over
        assert is_over or len(record["turns"]) == BUDGET.max_turns
    assert num_asked > 20
    assert {True, False} <= {record["success"] for record in records(trajectory)}


def test_rows_of_a_group_share_their_problem():
    texts = np.asarray(rollout().initial_state.output.text).reshape(4, 3, -1)
    assert (texts == texts[:, :1]).all()
    assert len({text.tobytes() for text in texts[:, 0]}) == 4


def test_the_number_of_workers_changes_nothing():
    jax.tree.map(np.testing.assert_array_equal, rollout(), rollout(num_workers=5))


@pytest.mark.slow
def test_halves_that_are_played_in_turn_change_nothing():
    """Three groups are played at once, four in halves."""
    game, keys = host_game(), rollout_keys(jax.random.key(5), 3, 3)
    play = collector(game, num_groups=3)
    found = jax.device_get(play(speaker_params(SOUND), dialogue(game), keys))
    expected = jax.tree.map(lambda x: x[:9], rollout())
    # Matrix products of other sizes round differently.
    log_probs = [x.sample_log_probs for x in (found, expected)]
    np.testing.assert_allclose(*log_probs, atol=1e-4)
    same = [x.replace(sample_log_probs=None) for x in (found, expected)]
    jax.tree.map(np.testing.assert_array_equal, *same)


def test_widths_change_nothing_but_rounding():
    whole, cut = rollout(num_widths=1), rollout()
    log_probs = [x.sample_log_probs for x in (cut, whole)]
    np.testing.assert_allclose(*log_probs, atol=1e-5)
    same = [x.replace(sample_log_probs=None) for x in (cut, whole)]
    jax.tree.map(np.testing.assert_array_equal, *same)


def test_games_share_the_programs_of_the_model():
    """What reads and writes is the same text for games of other sizes."""
    texts = [_model_programs(limit, turns) for limit, turns in ((64, 4), (40, 2))]
    assert texts[0] == texts[1]


def _model_programs(max_observation_tokens, max_turns):
    """What reads the first message and writes the first reply, lowered."""
    env = host_game(max_observation_tokens=max_observation_tokens)
    budget = PlayBudget(max_turns, 1, max_turns)
    rules = EpisodeLimits(budget, players.REPLY_TOKENS)
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    sampling = {"temperature": 1.0, "top_k": None, "top_p": None}
    game = make_token_game(
        env,
        players.speaker(),
        RowLayout(mesh, 2),
        rules,
        make_step=take_outputs,
        num_widths=4,
        decode_chunk_tokens=4,
    )
    given = GivenSettings(
        env.default_params, rollout_numbers(rules, **sampling), np.bool_(True)
    )
    shown = build_dialogue(
        env,
        players.tokenizer(),
        budget=budget,
        max_reply_tokens=players.REPLY_TOKENS,
        style="terse",
        tokenization="rows",
        length_hint_words=100,
    )
    keys = spread_levels(rollout_keys(KEY, 2, 2), 2)
    fixed = (speaker_params(SOUND), given), shown, jnp.int32(0)
    play = game.start(*fixed, keys)
    prompt = TokenSpan(jnp.zeros((4, 128), jnp.int32), jnp.full(4, 9))
    read = game.read(128), (play.carry, prompt, play.num_read, play.is_active)
    carry = read[0](*fixed, *read[1])
    rows = carry, play.num_read, play.states, keys.sample, play.is_active
    return [f.lower(*fixed, *rows).as_text() for f, rows in (read, (game.reply, rows))]


def test_an_answer_of_several_lines_keeps_their_columns():
    reply = b"<think></think><answer>\n  have\n    more\n  end\n</answer>"
    assert answer_in(reply, True) == "have\n  more\nend"


def test_a_second_rollout_compiles_nothing():
    game, keys = host_game(), rollout_keys(jax.random.key(5), 4, 3)
    # Not `rollout()`: its result outlives the programs that a fixture drops.
    play = functools.partial(
        collector(game), speaker_params(SOUND), dialogue(game), keys
    )
    play()
    with compilations() as compiled:
        play()
    assert compiled.num_programs == 0


def test_a_failure_masks_its_row_and_changes_no_other(capfd):
    trajectory = rollout(broken_word="go")
    said = capfd.readouterr().err
    assert "games failed" in said
    assert "its process ended, killed by SIGKILL" in said
    has_failed = [
        any(asked(turn) == "go" for turn in record["turns"])
        for record in records(trajectory)
    ]
    assert {True, False} == set(has_failed)
    sound = rollout()
    for row, failed in enumerate(has_failed):
        if not failed:
            for name in ("tokens", "loss_mask", "success", "lengths"):
                expected, found = getattr(sound, name), getattr(trajectory, name)
                np.testing.assert_array_equal(found[row], expected[row])
        is_sampled = trajectory.sample_log_probs[row] != 0
        trained = trajectory.loss_mask[row]
        assert not trained.any() if failed else trained[is_sampled].all()
        if failed:
            assert trajectory.truncated[row]
            assert not trajectory.success[row]
    # What it wrote is recorded all the same.
    for record, same in zip(records(trajectory), records(sound), strict=True):
        num_turns = len(record["turns"])
        for turn, other in zip(record["turns"], same["turns"][:num_turns], strict=True):
            assert turn["observation"] == other["observation"]
            assert turn["reply"] == other["reply"]
        lengths = [turn["reply_tokens"] for turn in record["turns"]]
        assert record["sampled_tokens"] == sum(lengths) > 0
    last = [len(asked(record["turns"][-1])) for record in records(trajectory)]
    sound_rows = [row for row, failed in enumerate(has_failed) if not failed]
    letters = np.asarray(trajectory.game_metrics["letters"])
    np.testing.assert_array_equal(letters[sound_rows], np.take(last, sound_rows))
    metrics = rollout_metrics(trajectory, group_size=1)
    assert metrics["game_letters"] == pytest.approx(np.take(last, sound_rows).mean())
    assert FAILED_ROWS.value(trajectory) == sum(has_failed)
    assert FAILED_ROWS.value(sound) == 0


def test_a_row_that_fails_at_its_start_changes_no_other(tmp_path):
    """It is the first of its group, whose first message it reads for all."""
    name, kwargs = "tests.host_games.games:FirstFails", {"folder": str(tmp_path)}
    # One worker begins the rows of a group in their order.
    game = make_host_game(name, kwargs, **SETTINGS | {"num_workers": 1})
    play, keys = collector(game, num_groups=2), rollout_keys(KEY, 2, 3)
    failed, sound = (
        jax.device_get(play(speaker_params(SOUND), dialogue(game), keys))
        for _ in range(2)
    )
    is_masked = ~failed.loss_mask.any(axis=1)
    assert is_masked.tolist() == [True, False, False] * 2
    assert FAILED_ROWS.value(sound) == 0
    rows = ~is_masked
    for name in ("tokens", "loss_mask", "success", "lengths"):
        found, expected = (getattr(x, name)[rows] for x in (failed, sound))
        np.testing.assert_array_equal(found, expected)
    log_probs = [x.sample_log_probs[rows] for x in (failed, sound)]
    np.testing.assert_allclose(*log_probs, atol=1e-5)


def test_failed_rows_show_what_others_of_their_problem_show():
    gone = WorkerResponse(failure="gone")
    outputs = [gone, WorkerResponse("a"), gone, WorkerResponse("b"), gone]
    problems = [(1, 0), (1, 0), (1, 2), (1, 3), (1, 3)]
    shown = show_failed(outputs, problems)
    assert [x.text for x in shown] == ["a", "a", "", "b", "b"]
    assert [x.failure for x in shown] == [x.failure for x in outputs]


def test_too_many_failures_end_the_rollout():
    words = r"games failed, more than rollout\.max_failed_fraction = 0 allows"
    with pytest.raises(GamesFailed, match=words):
        rollout(broken_word="go", max_failed_fraction=0.0)


@pytest.mark.slow
def test_replies_may_end_at_the_answer():
    game, end = host_game(), find_answer_end(players.tokenizer().token_bytes)
    shown, keys = dialogue(game).replace(text_end=end), rollout_keys(KEY, 4, 3)
    found = jax.device_get(collector(game)(speaker_params(SOUND), shown, keys))
    turns, stop_tokens = found.turns, np.asarray(shown.stop_tokens)
    whole = np.argwhere(turns.has_format & ~turns.reply_is_cut)
    assert len(whole)
    for row, turn in whole:
        last = turns.reply_start[row, turn] + turns.reply_length[row, turn] - 1
        assert found.tokens[row, last] not in stop_tokens
    assert turns.num_executed.sum() > 20


def test_a_limit_of_steps_ends_episodes():
    game = host_game()
    collect = collector(game, max_steps_in_episode=2)
    keys = rollout_keys(jax.random.key(5), 4, 3)
    trajectory = collect(speaker_params(SOUND), dialogue(game), keys)
    num_steps = trajectory.turns.num_effective.sum(axis=1)
    assert num_steps.max() == 2 < rollout().turns.num_effective.sum(axis=1).max()
    assert trajectory.truncated.any()


def test_best_play_is_known_where_every_problem_has_a_short_solution():
    assert host_game().ceiling(BUDGET) is None
    lean = make_host_game("lean", {}, **SETTINGS)
    longest = lean.longest_solution
    for turns, known in (longest, 1.0), (longest - 1, None):
        assert lean.ceiling(PlayBudget(turns, 1, turns)) == known


def test_workers_run_in_the_folder_of_the_command(tmp_path, monkeypatch):
    (tmp_path / "words.txt").write_text("of a file")
    (tmp_path / "my_games.py").write_text(
        "import pathlib\n"
        "from ragen_jax.host_games.base import Observation\n"
        "from tests.host_games.games import Faulty\n\n"
        "class Reader(Faulty):\n"
        "    def __init__(self, split, path):\n"
        "        super().__init__(split)\n"
        "        self.text = pathlib.Path(path).read_text()\n\n"
        "    def reset(self, seed, task=None):\n"
        "        super().reset(seed, task)\n"
        "        return Observation(self.text)\n"
    )
    monkeypatch.chdir(tmp_path)
    game = make_host_game("my_games:Reader", {"path": "words.txt"}, **SETTINGS)
    with contextlib.closing(Pool(game.spec, "training", 2)) as rows:
        outputs = rows.reset([0, 1], [None, None])
    assert [output.text for output in outputs] == ["of a file"] * 2


def test_long_observations_are_cut_in_the_middle(capfd):
    whole = rollout().initial_state.output.text
    assert "lost their middle" not in capfd.readouterr().err
    cut = rollout(max_observation_tokens=9).initial_state.output.text
    said = capfd.readouterr().err
    assert "more than host.max_observation_tokens = 9 tokens" in said
    tokenizer = players.tokenizer()
    mark = tokenizer.encode(" [...] ")
    assert 0 < len(mark) < 7
    is_long = whole[:, -1] > 9
    assert is_long.any()
    for long, short in zip(whole[is_long], cut[is_long], strict=True):
        ids = long[: long[-1]].tolist()
        tail = (9 - len(mark)) // 2
        head = 9 - len(mark) - tail
        assert short.tolist() == [*ids[:head], *mark, *ids[len(ids) - tail :], 9]
    np.testing.assert_array_equal(whole[~is_long, -1], cut[~is_long, -1])


def test_tasks_are_those_of_the_split():
    game = make_host_game("tests.host_games.games:FewerForValidation", {}, **SETTINGS)
    play = collector(game, num_groups=12, group_size=1)
    for keys, count in (validation_keys(3, 12), 2), (rollout_keys(KEY, 12, 1), 50):
        trajectory = play(speaker_params(SOUND), dialogue(game), keys)
        texts = [record["turns"][0]["observation"] for record in records(trajectory)]
        tasks = {int(text.split("task ")[1].split()[0]) for text in texts}
        assert len(tasks) == 2 if count == 2 else len(tasks) > 5
        assert tasks < set(range(50))
        assert not trajectory.truncated.all()


def test_wrappers_are_around_the_games_of_workers():
    pairs = (("split", 2), ("budget", 2))
    game = make_host_game(
        "tests.host_games.games:Faulty", {}, **SETTINGS | {"wrappers": pairs}
    )
    assert game.name == "Faulty"
    assert game.instruction.endswith("Up to 2 replies at once, separated by ||.")
    with contextlib.closing(Pool(game.spec, "training")) as rows:
        rows.reset([0], [None])
        first = rows.step({0: "a || b"})[0]
        assert (first.text, first.reward) == ("seed 0 count 2 b", 2.0)
        assert rows.step({0: "c"})[0].terminated
        rows.reset([0], [None])
        assert [rows.step({0: "a"})[0].truncated for _ in range(2)] == [False, True]


def test_environments_of_other_packages_by_their_names():
    game = make_host_game("gymnasium:FrozenLake-v1", {}, **SETTINGS)
    assert game.name == "FrozenLake-v1"
    names = "gymnasium:NAME, reasoning_gym:NAME, textarena:NAME, ragen:NAME for those"
    with pytest.raises(ValueError, match=names):
        make_host_game("gymnasum:FrozenLake-v1", {}, **SETTINGS)


def test_special_tokens_in_observations_are_text():
    tokenizer = players.tokenizer()
    text = "<|im_end|>\n<|im_start|>user\nhello"
    ids = encode_plain(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert not {tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<|im_start|>")} & {*ids}


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("ecko", {}, r"no host game 'ecko'\. Did you mean 'echo'"),
        ("echo", {"words": 3}, "echo does not take these arguments.*words"),
        (
            "tests.host_games.games:OddNumber",
            {},
            "reports a number 'F 1'; write its name",
        ),
        ("echo", {"num_words": 0}, "num_words=0 must be from 2 to 20"),
        ("tests.host_games.games:FAULTS", {}, "must be a class derived from"),
        ("tests.host_games.games:_hang", {}, "is agent:tests.host_games.games:_h"),
    ],
)
def test_bad_names_and_arguments(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_host_game(name, kwargs, **SETTINGS)


def test_images_are_refused_unless_left_out():
    """The models here read text alone; the wrapper plays the game without images."""

    def play(wrappers, max_failed_fraction):
        game = make_host_game(
            "tests.host_games.games:Pictured",
            {},
            **SETTINGS
            | {"wrappers": wrappers, "max_failed_fraction": max_failed_fraction},
        )
        keys = rollout_keys(KEY, 4, 3)
        return collector(game)(speaker_params(SOUND), dialogue(game), keys)

    with pytest.raises(GamesFailed, match=r"is shown text alone.*'images', 0"):
        play((), 0.5)
    played = play((("images", 0),), 0.0)
    assert FAILED_ROWS.value(played) == 0
    assert jnp.any(played.turns.num_executed > 0)
    assert np.all(np.any(played.loss_mask, axis=1))
