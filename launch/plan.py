"""Check whether a configuration fits a device, before anything is allocated.

python -m launch.plan --config=configs/sokoban.py:qwen2.5-0.5b --device=a100-40gb

Exit status: 0 when it fits, 1 when it does not, 2 when it cannot be built.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from absl import flags

from launch import command
from launch.command import lasting_objects
from ragen_jax.runs.progress import working

_CONFIG = command.define_config()
_DEVICE = flags.DEFINE_string(
    "device",
    None,
    "Device to plan for, e.g. a100-40gb; default: the local device.",
)
_SEARCH = flags.DEFINE_bool(
    "search", True, "If it does not fit, search for a smaller setting that does."
)

GIB = 2**30


def main(argv: list[str]) -> int:
    with lasting_objects(), working("loading JAX"):
        config = command.read_config(_CONFIG, argv)
        _offer_devices(config)
        from ragen_jax.config import validate
        from ragen_jax.memory.alarms import hidden_alarms
        from ragen_jax.memory.devices import detected_device, named_device
        from ragen_jax.memory.plan import make_plan, read_model
        from ragen_jax.memory.reduce import find_fix

    overrides = command.overridden_keys(argv)
    validate(config, overrides)
    # An unknown name is refused before anything is compiled.
    device = named_device(_DEVICE.value) if _DEVICE.value else detected_device()
    model, tokenizer, notes = read_model(config.model.path)
    notes += _without_gpu(config)
    for note in (*notes, *_notes(device)):
        print(f"note: {note}")
    with hidden_alarms():
        plan = make_plan(config, model, tokenizer, watch=_timed)
    _print_plan(plan)
    # The devices of a CPU are all in one memory.
    num_devices = config.mesh.data * config.mesh.fsdp * config.mesh.tensor
    limit = device.limit // num_devices if device.kind == "cpu" else device.limit
    if plan.peak <= limit:
        print(_verdict(plan, device, limit, "fits"))
        return 0
    print(_verdict(plan, device, limit, "does not fit"))
    if not _SEARCH.value:
        return 1
    print("searching for a smaller setting that fits")
    with hidden_alarms():
        fix = find_fix(
            config, model, tokenizer, plan, limit, report=_report, watch=_timed
        )
    if fix is None:
        print("no option of the list in ragen_jax/memory/reduce.py makes it fit")
        return 1
    print(_verdict(fix.plan, device, limit, "this fits"))
    print(f"  {' '.join(f'--config.{k}={v}' for k, v in fix.changes.items())}")
    print(f"its cost: {'; '.join(fix.costs)}")
    return 1


def _offer_devices(config) -> None:
    """Let a CPU stand for all devices of a mesh."""
    import jax

    if "mesh" not in config:
        return  # another command's configuration, which `validate` refuses
    num_devices = config.mesh.data * config.mesh.fsdp * config.mesh.tensor
    if num_devices > 1 and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", num_devices)


def _without_gpu(config) -> list[str]:
    """Replace an attention that cannot be compiled here; returns a note of it."""
    import jax

    if config.model.attention != "cudnn" or jax.default_backend() == "gpu":
        return []
    config.model.attention = "blocks"
    return [
        "planned with model.attention = 'blocks', which needs more: 'cudnn' cannot be "
        "compiled without a GPU"
    ]


def _notes(device) -> list[str]:
    """Notes on the accuracy of the numbers."""
    import jax

    backend = jax.default_backend()
    if backend == device.kind or device.name == "this machine's CPU":
        return []
    return [
        f"compiled for {backend}, not for {device.name}: the compiler there assigns "
        "buffers in another way, so keep some distance from its limit"
    ]


@contextlib.contextmanager
def _timed(program: str) -> Iterator[None]:
    """A line per program: what is compiled, and how long it took."""
    print(f"  compiling the {program} ... ", end="", flush=True)
    began = time.perf_counter()
    try:
        yield
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
    except BaseException:
        print(flush=True)
        raise


def _report(line: str) -> None:
    print(f"  tried {line}", flush=True)


def _print_plan(plan) -> None:
    print("parameters")
    for name, number in plan.counts.items():
        print(f"  {name:<42}{number:>15,}")
    print("bytes per device (GiB)")
    for name, size in plan.holdings.items():
        if size:
            print(f"  {name:<42}{size / GIB:>10.3f}")
    columns = ("arguments", "outputs", "temporaries", "aliased", "elsewhere", "peak")
    print("compiled programs per device (GiB)")
    print(f"  {'':<12}{''.join(f'{name:>13}' for name in columns)}")
    for name, memory in plan.memory.items():
        sizes = [getattr(memory, column) for column in columns[:4]]
        sizes += [plan.elsewhere[name], plan.peak_of(name)]
        print(f"  {name:<12}{''.join(f'{size / GIB:>13.3f}' for size in sizes)}")


def _verdict(plan, device, limit: int, word: str) -> str:
    return (
        f"{word}: {plan.peak / GIB:.3f} GiB at most ({plan.largest}) of "
        f"{limit / GIB:.3f} GiB usable on {device.name}{device.advice(plan.peak)}"
    )


if __name__ == "__main__":
    command.run(main, config="training")
