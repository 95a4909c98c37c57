"""Seconds per training iteration: rollout, update, and what the host adds.

    python -m benchmarks.iteration --json=FILE           # pocket model, next to torch
    python -m benchmarks.iteration --presets=smollm2-135m --peer=torch --kept=1 \
        --group_size=8 --reply_tokens=24 --repeats=2
    python -m benchmarks.iteration --presets=qwen2.5-0.5b,grpo --reply_tokens=100
    python -m benchmarks.iteration --presets=qwen2.5-0.5b,grpo --reply_tokens=400
    python -m benchmarks.iteration --presets=qwen2.5-0.5b --tiny --reply_tokens=6

The second needs `launch.fetch smollm2-135m`. The third and fourth run the paper's shape
(8 x 16 rows, 5 turns) on random weights, for a GPU. With `--reply_tokens` every reply
has exactly that many, which is also the reply budget: the ids that end a reply, which
are data to the compiled rollout, are replaced by one that no token has. The program
stays the same.

An iteration is what `train()` does between evaluations, diagnoses and checkpoints:
rollout, update, metrics, episodes and files. Updates keep all groups and, in turn, a
quarter of them; the rollout's program is the same. "Host" is the time outside rollout
and update, during which the device has nothing to do. Each figure is of several
iterations in turn; read minima and medians. Where the device says how much memory was
in use, the most stands beside what `launch.plan` estimates: with one share kept
(`--kept`) they are of the same run.

With `--peer=torch` (the default for the pocket model where torch is installed) a loop
of the same algorithm in torch, transformers and Python
(`benchmarks/peers/torch_loop.py`) plays the same levels from the same weights, in turn
with ours, with the last share of `--kept`. SmolLM2 then learns by GRPO without the
preset's bonus for the form, which the peer does not know, and the peer gets the text of
the first messages, which are the only ones, from us. On a GPU it uses the memory that
JAX leaves. The status is 1 when the peer is not the same: log-probabilities of our
episodes 1e-4 apart (in bfloat16 0.05 on average), or, where replies may end, success
further apart than four standard errors before anyone has learned.
"""

import contextlib
import pathlib
import tempfile
import time

from absl import flags

from benchmarks import harness, runs, trace
from launch import command

_PRESETS = flags.DEFINE_string("presets", "pocket", "See configs/sizes.py.")
_REPLY_TOKENS = flags.DEFINE_integer("reply_tokens", None, "Tokens of every reply.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured iterations of each kind.")
_PEER = flags.DEFINE_enum("peer", None, ["torch", "none"], "Default: see above.")
_TINY = flags.DEFINE_bool("tiny", False, "A tiny random network and batch.")
_NUM_GROUPS = flags.DEFINE_integer("num_groups", None, "Groups of a rollout.")
_GROUP_SIZE = flags.DEFINE_integer("group_size", None, "Rows of a group.")
_PLAIN = flags.DEFINE_bool("plain", False, runs.PLAIN_HELP)
_KEPT = flags.DEFINE_multi_float(
    "kept", [1.0, 0.25], "Share of the groups that an update keeps; several in turn."
)
_PROFILE = flags.DEFINE_bool(
    "profile", False, "One more rollout and update under the profiler: time by kernel."
)
harness.define_json()

# What the peer knows of SmolLM2's preset.
PEER_OF_SMOLLM2 = {
    "algo.advantage": "grpo",
    "bonus.format": None,
    "rollout.stop_at_answer": False,
}
# Of SmolLM2: 2,000 tokens a pass. With 64 rows it ran out of 13 GB.
PEER_MICROBATCH_ROWS = 16


def read_config(share: float):
    """The run with a share of the groups kept, checked."""
    changes = {"filter.keep_fraction": share}
    if _REPLY_TOKENS.value is not None:
        changes["rollout.max_reply_tokens"] = _REPLY_TOKENS.value
    if _PEER.value == "torch" and _is_smollm2():
        changes |= PEER_OF_SMOLLM2
    sizes = {
        "rollout.num_groups": _NUM_GROUPS.value,
        "rollout.group_size": _GROUP_SIZE.value,
    }
    changes |= {key: value for key, value in sizes.items() if value is not None}
    how = {"tiny": _TINY.value, "plain": _PLAIN.value}
    return runs.batch_config(_PRESETS.value, changes, **how)


class Loop:
    """What `train()` repeats, on a rollout program that several of them share.

    Attributes:
      seconds: stage -> of each iteration.
      compiled: stage -> seconds of its compilation.
    """

    def __init__(self, config, setup, collect, writer):
        self._config, self._collect, self._writer = config, collect, writer
        self._learner = setup.parts.learner
        self._join, self._task = setup.parts.join, setup.parts.tasks[0]
        self._frozen = self._learner.freeze(setup.params)
        self._state = self._learner.init(setup.params, config.seed)
        self._done = 0
        self.seconds = {"rollout": [], "update": [], "host": [], "iteration": []}
        self.compiled: dict[str, float] = {}
        self.sampled_tokens: list[int] = []
        self.success: list[float] = []

    def iterate(self, key):
        """An iteration; returns its rollout."""
        import jax

        from ragen_jax import rngs
        from ragen_jax.diagnostics.timing import timed
        from ragen_jax.rollout.metrics import rollout_metrics
        from ragen_jax.rollout.records import episodes

        config, timing, began = self._config, {}, time.perf_counter()
        with timed(timing, "rollout"):
            params = self._learner.play_params(self._frozen, self._state)
            rollout = jax.block_until_ready(self._collect(params, key))
        with timed(timing, "update"):
            self._state, stats, _ = self._learner.update(
                self._frozen,
                self._learner.numbers,
                self._state,
                self._join([rollout]),
                rngs.stream(key, "shuffle"),
            )
            stats = jax.device_get(stats)
        group_size = config.rollout.group_size
        play = jax.device_get(rollout_metrics(rollout, group_size=group_size))
        metrics = {name: float(x) for name, x in (stats | play).items()}
        self._done += 1
        count = config.logging.trajectories_per_iteration
        task = self._task
        told = episodes(rollout, task.tokenizer, task.dialogue.prompts, count)
        self._writer.episodes(self._done, told)
        self._writer.scalars(self._done, metrics | timing)
        whole = time.perf_counter() - began
        self._note(timing, whole)
        self.sampled_tokens.append(int(rollout.loss_mask.sum()))
        self.success.append(float(rollout.success.mean()))
        return rollout

    def profile(self, key) -> dict:
        """Time by kernel of a rollout and of an update, see `benchmarks/trace.py`."""
        params = self._learner.play_params(self._frozen, self._state)
        rollouts = []

        def play():
            rollouts.append(self._collect(params, key))
            return rollouts

        def update():
            arrays = self._join(rollouts), key
            fixed = self._frozen, self._learner.numbers
            self._state, stats, _ = self._learner.update(*fixed, self._state, *arrays)
            return stats

        return {
            "rollout": trace.kernel_times(play),
            "update": trace.kernel_times(update),
        }

    def _note(self, timing, whole: float) -> None:
        stages = {name: timing[f"timing_s/{name}"] for name in ("rollout", "update")}
        stages["host"] = whole - sum(stages.values())
        stages["iteration"] = whole
        for name, seconds in stages.items():
            self.seconds[name].append(seconds)
        for name, seconds in timing.items():
            if name.startswith("perf/compile_s/") and self._done == 1:
                self.compiled[name.rsplit("/", 1)[1]] = seconds


def rollout_program(setup, forced: bool):
    """`(params, key) -> Trajectory`, compiled.

    Args:
      setup: the run.
      forced: no token ends a reply.
    """
    import jax.numpy as jnp

    (task,) = setup.parts.tasks
    dialogue = task.dialogue
    if forced:
        dialogue = dialogue.replace(stop_tokens=jnp.full_like(dialogue.stop_tokens, -1))
    return lambda params, key: task.training.play(params, dialogue, key)


def wants_peer() -> bool:
    """Whether torch takes part.

    Raises:
      ValueError: it is asked for where it cannot.
    """
    is_pocket = runs.is_pocket(_PRESETS.value)
    is_forced = _REPLY_TOKENS.value is not None
    is_known = is_forced if _is_smollm2() else is_pocket and not is_forced
    can = is_known and not _TINY.value
    if _PEER.value is None:
        return can and is_pocket and harness.has_torch()
    if _PEER.value == "torch" and not can:
        raise ValueError(
            "--peer=torch plays the pocket model's own replies, or SmolLM2's of one "
            "length; choose --presets=pocket without --reply_tokens, or "
            "--presets=smollm2-135m with it, and leave out --tiny"
        )
    return _PEER.value == "torch"


def _is_smollm2() -> bool:
    return "smollm2-135m" in _PRESETS.value.split(",")


class Peer:
    """The torch loop, on the levels of our rollouts.

    Attributes:
      seconds: stage -> of each iteration.
      log_prob_difference: between its learner and our sampler, the largest; in
        bfloat16, where single tokens say little, the mean.
    """

    def __init__(self, config, rollout):
        import numpy as np

        from benchmarks.peers.torch_loop import TorchLoop
        from ragen_jax.program.build import model_folder

        is_forced = _REPLY_TOKENS.value is not None
        folder = model_folder(config.model.path)
        self._loop = TorchLoop(folder, config, is_forced=is_forced)
        if _is_smollm2():
            self._loop.learner.microbatch_rows = PEER_MICROBATCH_ROWS
        stages = ("generate", "games", "update", "iteration")
        self.seconds = {name: [] for name in stages}
        self.success: list[float] = []
        theirs = self._loop.learner.log_probs(np.asarray(rollout.tokens))
        ours, mask = np.asarray(rollout.sample_log_probs), np.asarray(rollout.loss_mask)
        apart, is_wide = np.abs(theirs - ours)[mask], config.model.dtype == "float32"
        self.log_prob_difference = float(apart.max() if is_wide else apart.mean())

    def iterate(self, rollout) -> None:
        """An iteration on the rollout's levels."""
        from benchmarks.peers.torch_loop import first_messages, games_from

        games, openings = games_from(rollout.initial_state, cols=6), None
        if _is_smollm2():
            openings = first_messages(rollout)
        began = time.perf_counter()
        self._loop.iterate(games, openings)
        whole = time.perf_counter() - began
        for name, seconds in (self._loop.seconds | {"iteration": whole}).items():
            self.seconds[name].append(seconds)
        self.success.append(float(self._loop.success.mean()))


def problems_of(peer: Peer, loop: Loop, num_rows: int, dtype: str) -> list[str]:
    """Why the peer is not the same algorithm, judged by the first iteration."""
    problems = []
    if peer.log_prob_difference > (1e-4 if dtype == "float32" else 0.05):
        problems.append(f"log-probabilities differ by {peer.log_prob_difference:.1e}")
    if _REPLY_TOKENS.value is not None:
        return problems
    ours, theirs = loop.success[0], peer.success[0]
    mean = (ours + theirs) / 2
    # Rows of a group share a level, which only brings the two closer.
    if abs(ours - theirs) > 4 * (2 * mean * (1 - mean) / num_rows) ** 0.5:
        problems.append(f"success {ours:.1%} (ours) and {theirs:.1%} (torch)")
    return problems


def planned_memory(config, parts) -> dict[str, int]:
    """Program of an iteration -> bytes that `launch.plan` estimates while it runs."""
    from ragen_jax.memory.plan import changed, make_plan

    (task,) = parts.tasks
    config = changed(config, {"evaluation.every": None})
    plan = make_plan(config, parts.model, task.tokenizer)
    return {name: plan.peak_of(name) for name in plan.memory}


def measure() -> dict:
    """Seconds of everyone's iterations, the first, which compile, left out."""

    from ragen_jax import rngs
    from ragen_jax.devices.sharding import peak_memory
    from ragen_jax.program.build import num_params
    from ragen_jax.runs.writer import RunWriter

    is_wanted, shares = wants_peer(), _KEPT.value
    configs = {share: read_config(share) for share in shares}
    config = configs[shares[0]]
    planned = notes = parameters = peer = None
    with contextlib.ExitStack() as stack:
        loops, collect = {}, None
        for share in shares:
            setup = runs.set_up(configs[share], tiny=_TINY.value)
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            writer = RunWriter(folder, after=-1, sinks=["tensorboard"])
            stack.callback(writer.close)
            collect = collect or rollout_program(setup, _REPLY_TOKENS.value is not None)
            loops[share] = Loop(configs[share], setup, collect, writer)
            notes, parameters = setup.notes, num_params(setup.params)
            planned = planned or planned_memory(config, setup.parts)
            # A run does not keep the weights it started from, either.
            del setup
            harness.note(f"built to keep {share:.0%}")
        root = rngs.root_key(config.seed)
        for i in range(_REPEATS.value + 1):
            key = rngs.step_key(root, i)
            for loop in loops.values():
                rollout = loop.iterate(key)
                taken = (f"{name} {s[-1]:.1f} s" for name, s in loop.seconds.items())
                harness.note(f"iteration {i}: {', '.join(taken)}")
            if is_wanted:
                peer = peer or Peer(configs[shares[-1]], rollout)
                peer.iterate(rollout)
        profile = None
        if _PROFILE.value:
            profile = loops[shares[-1]].profile(rngs.step_key(root, _REPEATS.value + 1))
    rows, last = rollout.tokens.shape[0], loops[shares[-1]]
    seconds = {
        f"{name}, {share:.0%} kept": values[1:]
        for share, loop in loops.items()
        for name, values in loop.seconds.items()
    }
    if peer:
        kept = f"{shares[-1]:.0%} kept"
        for name, values in peer.seconds.items():
            seconds[f"torch: {name}, {kept}"] = values[1:]
    return {
        "notes": notes,
        "problems": problems_of(peer, last, rows, config.model.dtype) if peer else [],
        "parameters": parameters,
        "dtype": config.model.dtype,
        "advantage": config.algo.advantage,
        "rows": rows,
        "turns": config.rollout.max_turns,
        "row_tokens": rollout.tokens.shape[1],
        "compile_s": {
            "rollout": loops[shares[0]].compiled.get("rollout", 0.0),
            **{f"update, {s:.0%} kept": loops[s].compiled["update"] for s in shares},
        },
        "sampled_tokens": last.sampled_tokens[1:],
        "success": {"ours": last.success, "torch": peer.success if peer else None},
        "peak_memory": peak_memory(),
        "planned_memory": planned,
        "profile": profile,
        "seconds": seconds,
    }


def print_table(figures: dict) -> None:
    import statistics

    seconds = figures["seconds"]
    tokens = statistics.mean(figures["sampled_tokens"])
    print(
        f"{figures['parameters']:,} parameters in {figures['dtype']}, "
        f"{figures['advantage']}, {figures['rows']} rows x {figures['turns']} turns, "
        f"up to {figures['row_tokens']} tokens; {tokens:,.0f} sampled per iteration"
    )
    compiled = figures["compile_s"].items()
    print("compiled: " + "; ".join(f"{name} {value:.1f} s" for name, value in compiled))
    planned = figures["planned_memory"].items()
    said = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in planned)
    memory = figures["peak_memory"]
    most = "not told" if memory is None else f"{memory / 1e9:.1f} GB"
    print(f"most memory in use: {most}; estimated by program: {said} GB")
    harness.print_rows(
        {"stage": name} | harness.times(of) | {"max s": f"{max(of):.3f}"}
        for name, of in seconds.items()
    )
    for share in _KEPT.value:
        host = sum(seconds[f"host, {share:.0%} kept"])
        whole = sum(seconds[f"iteration, {share:.0%} kept"])
        print(f"host share, {share:.0%} kept: {host / whole:.1%}")
    for stage, times in (figures["profile"] or {}).items():
        trace.print_times(stage, times)
    kept = f"iteration, {_KEPT.value[-1]:.0%} kept"
    if (name := f"torch: {kept}") in seconds:
        ours = seconds[kept]
        pairs = zip(seconds[name], ours, strict=True)
        print(
            f"torch takes {min(seconds[name]) / min(ours):.2f} times as long (minima), "
            f"{statistics.median(a / b for a, b in pairs):.2f} (median of neighbours)"
        )


def main(_: list[str]) -> int:
    return harness.report(measure(), print_table)


if __name__ == "__main__":
    command.run(main)
