"""Rollouts one iteration ahead: what is played with, resumed, refused and counted."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import threading
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sokoban, world
from ragen_jax import rngs
from ragen_jax.config import validate
from ragen_jax.diagnostics.timing import compilations
from ragen_jax.evaluation.load import open_trained
from ragen_jax.learner.state import take_snapshot
from ragen_jax.memory.plan import make_plan, read_model
from ragen_jax.memory.programs import MemoryUse
from ragen_jax.program import prefetch
from ragen_jax.program.build import Program, build_program
from ragen_jax.rollout.host import games
from ragen_jax.rollout.host.rows import GamesFailed
from ragen_jax.runs.reader import RECORDED
from ragen_jax.runs.run import digest
from ragen_jax.train import make_iterate, run_program, train
from tests import commands

AHEAD = {
    "rollout.ahead": 1,
    "loss.importance_cap": 2.0,
    "loss.old_log_probs": "learner",
    # Large steps: what was played with which parameters shows in every token.
    "optimizer.learning_rate": 0.02,
    "rollout.max_turns": 1,
    "evaluation.every": None,
}
SPLIT = AHEAD | {"rollout.devices": 1}
FILL = AHEAD | {"rollout.max_actions_per_turn": 1, "rollout.max_actions_per_episode": 1}
MIXED = SPLIT | {"mesh.data": 2, "mesh.fsdp": 2, "rollout.devices": 4}
PLAYED = {"FILL": FILL, "SPLIT": SPLIT}


def make_config(model, changes, **more):
    """A tiny run; host games where nothing else plays beside the learner."""
    is_split = changes.get("rollout.devices") is not None
    task = sokoban if is_split else world
    config = commands.tiny_config(task, model, **changes | more)
    validate(config)
    return config


@functools.cache
def program_of(model, name):
    """The program of an entry of `PLAYED`; its state is not to be given away."""
    return build_program(make_config(model, PLAYED[name]))


def fresh_state(program):
    return jax.tree.map(jnp.copy, program.state)


def run_again(model, name, workdir, **changes):
    """A run in the program of an entry, with changes that are not compiled into it."""
    config = make_config(model, PLAYED[name], **changes)
    program = program_of(model, name)
    program = dataclasses.replace(program, state=fresh_state(program))
    assert run_program(config, program, workdir) == 0


def advance(config, program, num_iterations):
    """Results of some iterations, on the host."""
    found = []
    state = fresh_state(program)
    with prefetch.RolloutPrefetcher(config, program) as prefetcher:
        iterate = make_iterate(config, program, prefetcher=prefetcher)
        for done in range(1, num_iterations + 1):
            result = iterate(state, done)
            state = result.state
            params, rollouts = jax.device_get((state.params, tuple(result.rollouts)))
            found.append((params, rollouts, result.metrics))
    return found


@functools.cache
def on_one_device(model):
    """Four iterations of `FILL`."""
    return advance(make_config(model, FILL), program_of(model, "FILL"), 4)


@pytest.mark.parametrize(
    "changes",
    [FILL, MIXED | {"lora.rank": 2, "learner.updates_per_rollout": 2}],
    ids=["one device", "adapters on eight"],
)
def test_each_rollout_is_played_with_the_parameters_before_the_last_update(
    model, changes
):
    """To the bit what a loop without threads plays and learns."""
    config = make_config(model, changes)
    if changes is FILL:
        program, found = program_of(model, "FILL"), on_one_device(model)
    else:
        program = build_program(config)
        found = advance(config, program, 4)
    players = program.learner.state.acting_snapshot.iteration.sharding.mesh
    learner, root = program.learner, rngs.root_key(config.seed)
    state = fresh_state(program).replace(acting_snapshot=None)
    frozen = program.frozen
    if frozen is not None:
        where = jax.sharding.NamedSharding(players, jax.sharding.PartitionSpec())
        frozen = jax.device_put(jax.device_get(frozen), where)
    played = [take_snapshot(state, players)] * 2
    for i, (params, rollouts, metrics) in enumerate(found):
        key = rngs.step_key(root, i)
        episodes = program.collect(learner.play_params(frozen, played[i]), key)
        chex.assert_trees_all_equal(jax.device_get(episodes), rollouts)
        batch = jax.device_put(jax.device_get(episodes[0]), program.batch_sharding)
        if i > 0:
            played.append(take_snapshot(state, players))
        for j in range(config.learner.updates_per_rollout):
            shuffle = jax.random.fold_in(rngs.stream(key, "shuffle"), j)
            state, stats, _ = program.update(state, batch, shuffle)
        chex.assert_trees_all_equal(jax.device_get(state.params), params)
        for name, value in jax.device_get(stats).items():
            np.testing.assert_array_equal(metrics[name], value, err_msg=name)
        stale = config.learner.updates_per_rollout if i else 0
        assert metrics["actor/staleness"] == stale
    # The policy that is behind is another one.
    assert found[0][2]["actor/sampler_log_prob_difference"] < 1e-5 or stale > 1
    assert found[2][2]["actor/sampler_log_prob_difference"] > 1e-3


def test_devices_of_their_own_change_nothing_but_where(model):
    config = commands.tiny_config(world, model, **FILL | {"rollout.devices": 1})
    program = build_program(config)
    split, alone = advance(config, program, 3), on_one_device(model)[:3]
    for (mine, rollouts, _), (theirs, others, _) in zip(alone, split, strict=True):
        chex.assert_trees_all_close(mine, theirs, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(rollouts[0].tokens, others[0].tokens)
    learners = program.batch_sharding.mesh.devices.flat
    players = program.learner.state.acting_snapshot.iteration.sharding.mesh.devices.flat
    assert not set(learners) & set(players)


@pytest.mark.parametrize("changes", [SPLIT, MIXED], ids=["two devices", "eight"])
def test_weights_move_from_device_to_device(model, changes):
    """Each slice that a player holds is one that a device that learns has."""
    if changes == SPLIT:
        state = program_of(model, "SPLIT").state
    else:
        state = build_program(make_config(model, changes)).state
    with jax.transfer_guard_device_to_host("disallow_explicit"):
        acting_snapshot = take_snapshot(
            state, state.acting_snapshot.iteration.sharding.mesh
        )
    chex.assert_trees_all_equal(*jax.device_get((acting_snapshot.params, state.params)))
    for x, y in zip(
        *map(jax.tree.leaves, (state.params, acting_snapshot.params)), strict=True
    ):
        there, here = (
            {str(index) for index in a.sharding.devices_indices_map(a.shape).values()}
            for a in (y, x)
        )
        assert there <= here
        assert not y.sharding.device_set & x.sharding.device_set


def test_iterations_compile_nothing_again(model):
    config, program = make_config(model, SPLIT), program_of(model, "SPLIT")
    state = fresh_state(program)
    with prefetch.RolloutPrefetcher(config, program) as prefetcher:
        iterate = make_iterate(config, program, prefetcher=prefetcher)
        for done in (1, 2):
            state = iterate(state, done).state
        with compilations() as compiled:
            for done in (3, 4):
                state = iterate(state, done).state
    assert compiled.num_programs == 0
    assert program.learner.update._cache_size() == 1


def test_the_rollout_runs_while_the_update_does(model, monkeypatch):
    """Each waits for the other to have begun: one after the other would not end."""
    config = make_config(model, SPLIT, train__num_iterations=2)
    program = program_of(model, "SPLIT")
    playing, updating = threading.Event(), threading.Event()
    collect, update, num_rollouts = Program.collect, program.update, []

    def collect_and_tell(self, *args):
        num_rollouts.append(args)
        if len(num_rollouts) == 2:
            playing.set()
            assert updating.wait(60)
        return collect(self, *args)

    def update_and_tell(*args):
        updating.set()
        assert playing.wait(60)
        return update(*args)

    monkeypatch.setattr(Program, "collect", collect_and_tell)
    program = dataclasses.replace(program, update=update_and_tell)
    with prefetch.RolloutPrefetcher(config, program) as prefetcher:
        iterate = make_iterate(config, program, prefetcher=prefetcher)
        first = iterate(fresh_state(program), 1)
        second = iterate(first.state, 2)
    assert second.timing["timing_s/rollout_hidden"] > 0
    # None for an iteration that there will not be.
    assert len(num_rollouts) == 2


def final_digest(workdir):
    config = json.loads((workdir / "config.json").read_text())
    return config[RECORDED]["result"]["params_sha256"]


def record_of(workdir):
    return commands.record_of(workdir), final_digest(workdir)


@pytest.fixture(scope="module", params=PLAYED, ids=["one device", "two"])
def whole(request, model, tmp_path_factory):
    """Name and run folder of a run that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    run_again(model, request.param, workdir)
    return request.param, workdir


def test_a_run_that_stops_fails_and_goes_on_is_the_uninterrupted_one(
    model, whole, tmp_path, monkeypatch
):
    name, uninterrupted = whole
    # Ended early: nothing was played ahead.
    run_again(model, name, tmp_path / "run", train__num_iterations=2)
    collect, num_rollouts = Program.collect, []

    def fail(self, *args):
        num_rollouts.append(args)
        if len(num_rollouts) == 2:
            raise GamesFailed("too many games failed")
        return collect(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "collect", fail)
        # The rollout of iteration 4, in the thread: after 3 was saved.
        with pytest.raises(GamesFailed, match="too many"):
            run_again(model, name, tmp_path / "run")
    saved = {int(x.name) for x in (tmp_path / "run" / "checkpoints").iterdir()}
    assert max(saved) == 3
    run_again(model, name, tmp_path / "run")
    assert record_of(tmp_path / "run") == record_of(uninterrupted)
    # Its checkpoints open on one device, with the parameters of the end.
    trained = open_trained(tmp_path / "run", None)
    assert trained.program.state.acting_snapshot is None
    assert final_digest(tmp_path / "run") == digest(trained.params)


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["FILL"], indirect=True)
def test_a_killed_run_resumes_to_the_bit(model, whole, tmp_path, capsys):
    """Resumed by this process, which builds its program anew."""
    name, uninterrupted = whole
    process = subprocess.Popen(
        commands.train_command(model, tmp_path / "run", "world", **PLAYED[name]),
        cwd=commands.ROOT,
        env=commands.environment(8),
        stdout=subprocess.DEVNULL,
    )
    checkpoint = tmp_path / "run" / "checkpoints" / "2"
    while not checkpoint.is_dir():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert train(make_config(model, PLAYED[name]), tmp_path / "run") == 0
    assert "resuming" in capsys.readouterr().out
    assert record_of(tmp_path / "run") == record_of(uninterrupted)


def children() -> set[str]:
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            words = (path / "cmdline").read_text()
        except OSError:
            continue
        if (
            parent == str(os.getpid())
            and "ragen_jax.host_games.workers.worker" in words
        ):
            found.add(path.name)
    return found


def test_a_rollout_that_nothing_waits_for_ends_with_its_games(model, monkeypatch):
    """Thirty turns of half a second are not waited for."""
    monkeypatch.setattr(games, "answer_in", lambda *_: "go")
    changes = {
        "rollout.max_turns": 30,
        "rollout.max_actions_per_episode": 30,
        "host.max_observation_tokens": 8,
        "host.num_workers": 8,
        "env.host": "tests.slow_game:Sleeper",
        "train.num_iterations": 5,
    }
    before = children()
    config = make_config(model, FILL | changes)
    program = build_program(config)
    with prefetch.RolloutPrefetcher(config, program) as prefetcher:
        prefetcher.start(program.state, 1)
        deadline = time.monotonic() + 60
        while not children() - before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert children() - before
        time.sleep(1)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert not children() - before


REFUSED = {
    "no correction": (SPLIT | {"loss.importance_cap": None}, "corrects nothing"),
    "nothing to fill": (SPLIT | {"rollout.devices": None}, "gains nothing"),
    "one mesh": (
        SPLIT | {"rollout.devices": None, "mesh.data": 2},
        "same 2 devices",
    ),
    "too many": (SPLIT | {"rollout.devices": 8}, "only 8 devices are available"),
    "split unlike": (
        SPLIT | {"mesh.fsdp": 2, "rollout.devices": 3},
        "use a multiple of 2",
    ),
    "rows": (SPLIT | {"rollout.devices": 3}, "8 rows cannot be split over"),
    "two": (SPLIT | {"rollout.ahead": 2}, "rollout.ahead = 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(model, case):
    changes, message = REFUSED[case]
    config = commands.tiny_config(sokoban, model, **changes)
    with pytest.raises(ValueError, match=message):
        validate(config)


def test_several_processes_are_refused(model, monkeypatch):
    config = make_config(model, SPLIT)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    # All of them learn, as several processes have to.
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="2 processes would not start"):
        validate(config)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (SPLIT, "train.max_sampler_difference"),
        ({"rollout.ahead": 0}, "rollout.devices"),
    ],
)
def test_keys_without_effect(model, changes, key):
    config = make_config(model, SPLIT)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=rf"{key}.*rollout.ahead"):
        validate(config, [key])


def test_a_sampler_that_is_behind_may_differ(model, tmp_path):
    """`train.max_sampler_difference` bounds what should be equal."""
    changes = {"train__max_sampler_difference": 1e-4, "train__num_iterations": 2}
    run_again(model, "SPLIT", tmp_path / "run", **changes)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    differences = [
        json.loads(line)["actor/sampler_log_prob_difference"] for line in lines
    ]
    assert differences[1] > 1e-4


def test_a_plan_counts_the_copy_that_plays(model):
    use = MemoryUse(arguments=10_000, outputs=5_000, temporaries=7_000, aliased=0)
    known = dict.fromkeys(("rollout", "evaluation", "update"), use)

    def plan(changes, **more):
        config = make_config(model, changes, **more)
        shape, tokenizer, _ = read_model(config.model.path)
        return make_plan(config, shape, tokenizer, known)

    usual = plan(SPLIT, rollout__ahead=0)
    split = plan(SPLIT)
    weights = usual.holdings["weights that are trained"]
    assert usual.holdings["weights that play the next rollout"] == 0
    assert split.holdings["weights that play the next rollout"] == weights
    # What learns is not where it plays, and what plays not where it learns.
    assert split.floor == usual.floor
    assert split.elsewhere["update"] == usual.elsewhere["update"]
    assert split.elsewhere["rollout"] == 0
    alone, filled = plan(FILL, rollout__ahead=0), plan(FILL)
    assert filled.floor == alone.floor + weights + 4
    assert filled.elsewhere["rollout"] == alone.elsewhere["rollout"] + weights
    added = filled.elsewhere["update"] - alone.elsewhere["update"]
    assert added == use.peak
