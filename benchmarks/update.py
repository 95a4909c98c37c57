"""Learning: tokens per second and model FLOPs utilisation of the compiled update.

    python -m benchmarks.update --json=FILE             # pocket model, next to torch
    python -m benchmarks.update --presets=qwen2.5-0.5b  # random weights, for a GPU
    python -m benchmarks.update --tiny                  # seconds: checks the command

GRPO, all groups kept, every row full to its last token (random ids, half of a row or so
trained on), so that tokens are tokens and not padding. Where the pocket model is
measured on a CPU, PyTorch takes part, if it is installed: the same model (transformers'
Qwen2), episodes, minibatches and loss in plain float32 (`benchmarks/peers`), with the
microbatch that suits it best. Updates alternate; read the minima and medians.

FLOPs are those of `benchmarks/flops.py`, compared with XLA's own count for one
microbatch. Utilisation is of the matrix-product rate measured in the same run, in the
dtype of the computation, and of the data sheet's bfloat16 peak where the device is a
listed one. The status is 1 when the two learners disagree (log-probabilities by 1e-4;
loss, entropy or gradient norm by 1 %), or the two counts of FLOPs by more than half.
"""

import functools
import time

from absl import flags

from benchmarks import harness, runs
from launch import command

_PRESETS = flags.DEFINE_string("presets", "pocket", "A size, see configs/sizes.py.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Measured updates of each kind.")
_TINY = flags.DEFINE_bool("tiny", False, "A tiny random network and batch.")
_PLAIN = flags.DEFINE_bool("plain", False, runs.PLAIN_HELP)
harness.define_json()

TORCH_MICROBATCHES = (4, 8, 16, 32)


def read_config():
    """The run, checked."""
    changes = {"filter.keep_fraction": 1.0}
    if _TINY.value:
        changes["rollout.max_reply_tokens"] = 8
    presets, how = f"{_PRESETS.value},grpo", {"plain": _PLAIN.value}
    return runs.batch_config(presets, changes, tiny=_TINY.value, **how)


def counted_flops(setup, config, width: int) -> float | None:
    """XLA's count of one microbatch's forward and backward pass, per token.

    None: XLA does not count for this device.
    """
    import jax
    import jax.numpy as jnp

    from ragen_jax.learner.logprobs import hidden_states, token_log_probs
    from ragen_jax.models.policy import build_policy

    # Loops count as one turn: nothing is scanned, chunked or computed again here.
    policy = build_policy(setup.parts.model, dtype=config.model.dtype)
    rows = config.learner.microbatch_rows

    def loss(params, tokens):
        hidden = hidden_states(policy, params, tokens)
        log_probs, entropy = token_log_probs(
            policy, params, hidden, tokens, temperature=1.0, chunk_tokens=rows * width
        )
        return jnp.sum(log_probs + entropy)

    tokens = jax.ShapeDtypeStruct((rows, width), jnp.int32)
    params = setup.parts.learner.state.params
    lowered = jax.jit(jax.grad(loss)).lower(params, tokens)
    counted = lowered.cost_analysis()
    return counted["flops"] / (rows * width) if counted else None


class Ours:
    """Our update, with its state."""

    def __init__(self, setup, batch, key):
        import jax

        learner = setup.parts.learner
        frozen, self._state = (
            learner.freeze(setup.params),
            learner.init(setup.params, 0),
        )
        began = time.perf_counter()
        fixed = frozen, learner.numbers
        lowered = learner.update.lower(*fixed, self._state, batch, key)
        compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - began
        self._wait = jax.block_until_ready
        self._update = lambda state: compiled(*fixed, state, batch, key)

    def __call__(self) -> dict[str, float]:
        self._state, stats, _ = self._wait(self._update(self._state))
        return {name: float(stats[key]) for name, key in runs.OWN_STATS.items()}


def torch_peer(config, batch, key, log_probs):
    """The peer's update with its best microbatch, and how far its log-probs are off."""
    import numpy as np

    from benchmarks.peers.torch_learner import TorchLearner, as_episodes
    from ragen_jax.program.build import POCKET

    episodes, order = as_episodes(batch), runs.row_order(key, batch.tokens.shape[0])
    learner = TorchLearner(POCKET, config)
    difference = np.abs(learner.log_probs(episodes.tokens) - log_probs).max()
    taken = {}
    for rows in TORCH_MICROBATCHES:
        learner.microbatch_rows = rows
        update = functools.partial(learner.update, episodes, order)
        taken[rows] = harness.least_seconds(update, 1)
    # Built again: both start from the same weights.
    learner = TorchLearner(POCKET, config)
    learner.microbatch_rows = min(taken, key=taken.get)
    return lambda: learner.update(episodes, order), taken, float(difference)


def measure(config) -> dict:
    """Seconds of everyone's updates, taking turns, and what they are to be put next to.

    Besides the figures: "problems", sentences that say why they are not to be trusted.
    """
    import jax

    from benchmarks import flops
    from ragen_jax.program.build import num_params

    setup = runs.set_up(config, tiny=_TINY.value)
    harness.note("built")
    key = jax.random.key(config.seed)
    batch, log_probs = runs.full_rows(setup, config)
    harness.note("read the batch")
    ours = Ours(setup, batch, key)
    harness.note(f"compiled the update in {ours.compile_seconds:.0f} s")
    contestants, problems = {"ours": ours}, []
    figures = {"notes": setup.notes, "compile_s": ours.compile_seconds}
    has_peer = config.model.path == "pocket" and not _TINY.value
    if has_peer and jax.default_backend() == "cpu":
        if harness.has_torch():
            peer, tried, difference = torch_peer(config, batch, key, log_probs)
            contestants["torch"] = peer
            figures["torch_microbatch_s"] = tried
            if difference > 1e-4:
                problems.append(f"log-probabilities differ by {difference:.1e}")
        else:
            print("torch is left out: torch or transformers is not installed")
    stats = {name: update() for name, update in contestants.items()}
    if len(stats) == 2:
        problems += runs.disagreements(stats)
    seconds, _ = harness.take_turns(contestants, _REPEATS.value, warm_ups=0)
    rows, width = batch.tokens.shape
    parameters = num_params(setup.params)
    shape = (setup.parts.model, parameters, width)
    everything = flops.train_flops_per_token(*shape)
    trained = float(batch.loss_mask.mean())
    counted = counted_flops(setup, config, width)
    if counted is not None and not 2 / 3 < counted / everything < 1.5:
        problems.append(f"FLOPs per token: {everything:.3g}, XLA counts {counted:.3g}")
    return figures | {
        "problems": problems,
        "parameters": parameters,
        "rows": rows,
        "row_tokens": width,
        "dtype": config.model.dtype,
        "microbatch_rows": config.learner.microbatch_rows,
        "flops_per_token": flops.train_flops_per_token(*shape, trained),
        "flops_per_token_all_trained": everything,
        "flops_per_token_all_trained_xla": counted,
        "matmul_rate": flops.matmul_rate(config.model.dtype),
        "data_sheet_peak": flops.data_sheet_peak(jax.devices()[0].device_kind),
        "seconds": seconds,
    }


def print_table(figures: dict) -> None:
    tokens = figures["rows"] * figures["row_tokens"]
    rate, peak = figures["matmul_rate"], figures["data_sheet_peak"]
    counted = figures["flops_per_token_all_trained_xla"]
    counted = "nothing" if counted is None else f"{counted / 1e6:.2f}"
    print(
        f"{figures['parameters']:,} parameters in {figures['dtype']}, "
        f"{figures['rows']} rows of {figures['row_tokens']} tokens, "
        f"{figures['flops_per_token'] / 1e6:.2f} MFLOP a token "
        f"({figures['flops_per_token_all_trained'] / 1e6:.2f} were all trained on, of "
        f"which XLA counts {counted}); "
        f"compiled in {figures['compile_s']:.1f} s"
    )
    sheet = "not listed" if peak is None else f"{peak / 1e12:,.0f} TFLOP/s"
    print(f"matrix products: {rate / 1e9:,.0f} GFLOP/s; data sheet: {sheet}")
    best, rows = min(figures["seconds"]["ours"]), []
    for name, seconds in figures["seconds"].items():
        per_second = tokens / min(seconds)
        achieved = figures["flops_per_token"] * per_second
        rows.append(
            {
                "update": name,
                **harness.times(seconds),
                "tokens/s": f"{per_second:,.0f}",
                "of matmul": f"{achieved / rate:.0%}",
                "of sheet": "" if peak is None else f"{achieved / peak:.1%}",
                "ours is": f"{min(seconds) / best:.2f}x",
            }
        )
    harness.print_rows(rows)
    for rows, seconds in figures.get("torch_microbatch_s", {}).items():
        print(f"torch, microbatches of {rows} rows: {seconds:.2f} s")


def main(_: list[str]) -> int:
    return harness.report(measure(read_config()), print_table)


if __name__ == "__main__":
    command.run(main)
