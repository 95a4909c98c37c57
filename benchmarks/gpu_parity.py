"""Does the program of a GPU compute what a CPU computes: kernels, and a whole rollout.

    python -m benchmarks.gpu_parity --json=FILE

The pocket model plays the same levels with the same draws on a CPU and on the GPU,
without and with the kernels, in float32 with full products: how many episodes have the
same tokens, and how far log-probabilities are apart up to the first token that differs.
Then our kernels against their plain twins on random arrays in the sizes of
Qwen2.5-0.5B, with the time of both in a loop, as a rollout calls them: each call needs
the one before and keeps the cache in place, so that neither the host nor copies are
measured. Each result is written as soon as it is there. On a machine without a GPU the
kernels are interpreted. The status is 1 when kernels and
twins differ, or fewer than 9 of 10 episodes are equal.
"""

import functools
from collections.abc import Iterator

from absl import flags

from benchmarks import harness, runs
from launch import command

_ROWS = flags.DEFINE_integer("rows", 128, "Rows of the kernels.")
_SLOTS = flags.DEFINE_integer("slots", 3786, "Slots of the cache, half of them filled.")
_TURNS = flags.DEFINE_integer("turns", 100, "Calls of a kernel in a measured loop.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Measured loops.")
harness.define_json()

HEADS, KV_HEADS, HEAD_DIM, WIDTH = 14, 2, 64, 896
MESSAGE = 32  # tokens
# Largest difference of numbers of about 1, by the precision of the computation.
TOLERANCES = {"float32": 1e-4, "bfloat16": 4e-2}
LEAST_EQUAL = 0.9
# Rows enough for a share of equal episodes.
PLAYED = {"rollout.num_groups": 8, "rollout.group_size": 8}


def kernel_cases(dtype: str) -> dict:
    """Name -> the kernel, its twin, arrays for both, and those of the next call.

    The last is a function of the arrays and of what came of them.
    """
    import jax
    import jax.numpy as jnp

    from ragen_jax.models.attention import rope_angles
    from ragen_jax.models.kernels import decode as decode_kernel
    from ragen_jax.models.kernels import project as project_kernel

    def random(i: int, *shape: int):
        return jax.random.normal(jax.random.key(i), shape).astype(dtype)

    rows, slots = _ROWS.value, _SLOTS.value
    positions = jax.random.randint(jax.random.key(9), (rows, 1), 0, slots)
    caches = tuple(random(i, rows, KV_HEADS, slots, HEAD_DIM) for i in (1, 2))
    heads = random(0, rows, 1, HEADS + 2 * KV_HEADS, HEAD_DIM)
    columns = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    weights = [random(3, WIDTH, n) / WIDTH**0.5 for n in columns]
    biases = [random(4, n) for n in columns]
    how = {"interpret": True} if jax.default_backend() != "gpu" else {}
    angles = rope_angles(positions, HEAD_DIM, 1e6)

    def after_token(arrays, found):
        heads, angles, _, _, positions = arrays
        mixed, *caches = found
        mixed = mixed.reshape(rows, 1, HEADS, HEAD_DIM)
        return heads.at[:, :, :HEADS].set(mixed), angles, *caches, positions

    cases = {
        "attend_new_token": (
            functools.partial(decode_kernel.attend_by_kernel, **how),
            decode_kernel.attend_plainly,
            (heads, angles, *caches, positions),
            after_token,
        ),
        "attend_message": (
            functools.partial(decode_kernel.message_by_kernel, **how),
            decode_kernel.message_plainly,
            (
                random(6, rows, MESSAGE, HEADS, HEAD_DIM),
                *caches,
                jnp.minimum(positions[:, 0], slots - MESSAGE),
            ),
            lambda arrays, found: (found, *arrays[1:]),
        ),
        "project_normed": (
            functools.partial(project_kernel.project_by_kernel, eps=1e-6, **how),
            functools.partial(project_kernel.project_plainly, eps=1e-6),
            (random(5, rows, 1, WIDTH), jnp.ones(WIDTH), weights, biases),
            lambda arrays, found: (found[:, :, :WIDTH], *arrays[1:]),
        ),
    }
    if dtype == "float32":  # rollouts attend plainly to messages then
        del cases["attend_message"]
    return cases


def compare_kernels(dtype: str) -> Iterator[dict]:
    """Difference of each kernel and its twin, and seconds of a call of either."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    for name, (kernel, twin, arrays, following) in kernel_cases(dtype).items():
        # A GPU's products of float32s round to TF32 otherwise.
        with jax.default_matmul_precision("highest"):
            apart = jax.tree.map(
                lambda a, b: float(jnp.max(jnp.abs(a.astype("float32") - b))),
                jax.jit(kernel)(*arrays),
                jax.jit(twin)(*arrays),
            )
            loops = {
                name: looped(function, following)
                for name, function in {"kernel": kernel, "twin": twin}.items()
            }
            seconds, _ = harness.take_turns(
                loops, _REPEATS.value, prepare=lambda arrays=arrays: (arrays,)
            )
        seconds = {
            name: [each / _TURNS.value for each in values]
            for name, values in seconds.items()
        }
        # NumPy's maximum is NaN if any number is.
        apart = float(np.max(jax.tree.leaves(apart)))
        entry = {"kernel": name, "dtype": dtype, "apart": apart, "seconds": seconds}
        yield entry | {"is_equal": apart <= TOLERANCES[dtype]}


def looped(function, following):
    """Compiles calls of a function in a loop, `following` with the next arrays."""
    import jax

    def turn(_, arrays):
        return following(arrays, function(*arrays))

    return jax.jit(lambda arrays: jax.lax.fori_loop(0, _TURNS.value, turn, arrays))


def play(platform: str, decode_attention: str):
    """Tokens, lengths and log-probabilities of the pocket model's episodes."""
    import jax

    from ragen_jax.memory.plan import read_model
    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.program.build import build_parts, model_folder

    changes = PLAYED | {"rollout.decode_attention": decode_attention}
    config = runs.task_config("pocket,grpo", changes)
    model, tokenizer, _ = read_model(config.model.path)
    devices = jax.devices(platform)[:1]
    parts = build_parts(config, model, tokenizer, devices)
    params = load_checkpoint(model_folder(config.model.path))[1]
    (task,) = parts.tasks
    with jax.default_device(devices[0]), jax.default_matmul_precision("highest"):
        episodes = task.collect(params, jax.random.key(0))
    return jax.device_get(episodes)


def compare_rollouts() -> Iterator[dict]:
    """The GPU's episodes, by either kind of attention, against the CPU's."""
    import jax
    import numpy as np

    ours = play("cpu", "plain")
    is_gpu = jax.default_backend() == "gpu"
    for kind in ("plain", "triton") if is_gpu else ("plain",):
        theirs = play("gpu" if is_gpu else "cpu", kind)
        same = ours.tokens == theirs.tokens
        before = np.cumprod(same, axis=1).astype(bool) & ours.loss_mask
        apart = np.abs(ours.sample_log_probs - theirs.sample_log_probs)[before]
        yield {
            "decode_attention": kind,
            "equal_episodes": float(np.mean(same.all(axis=1))),
            "log_probs_apart": float(apart.max(initial=0.0)),
            "success": [float(np.mean(x.success)) for x in (ours, theirs)],
        }


def describe(one: dict) -> str:
    """A line about a rollout or a kernel."""
    if "kernel" not in one:
        return (
            f"{one['decode_attention']}: {one['equal_episodes']:.1%} of the episodes "
            f"equal the CPU's, log-probabilities within {one['log_probs_apart']:.1e}"
        )
    seconds = (f"{name} {1e6 * min(x):.1f} us" for name, x in one["seconds"].items())
    return (
        f"{one['kernel']} in {one['dtype']}: within {one['apart']:.1e} of its twin; "
        f"{', '.join(seconds)}"
    )


def main(_: list[str]) -> int:
    harness.print_versions()
    figures: dict[str, list] = {"rollouts": [], "kernels": []}
    stages = [("rollouts", compare_rollouts())]
    stages += [("kernels", compare_kernels(dtype)) for dtype in TOLERANCES]
    for name, entries in stages:
        for one in entries:
            figures[name].append(one)
            print(describe(one), flush=True)
            harness.write_json(figures)
    is_right = all(one["is_equal"] for one in figures["kernels"]) and all(
        one["equal_episodes"] >= LEAST_EQUAL for one in figures["rollouts"]
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    command.run(main)
