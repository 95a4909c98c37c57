"""Check whether a configuration fits a device, before anything is allocated.

python -m launch.plan --config=configs/sokoban.py:qwen2.5-0.5b --device=a100-40gb
python -m launch.plan --config=configs/sokoban.py --compile
python -m launch.plan --config=configs/sokoban.py:qwen2.5-0.5b --target=h100

Exit status: 0 when it fits, 1 when it does not or an estimate is too close to tell, 2
when it cannot be built.
"""

from launch import command  # isort: skip, it says what is not installed

import contextlib
import os
import time
from collections.abc import Iterator

from absl import flags
from ml_collections import config_flags

from launch.command import lasting_objects
from ragen_jax.runs.progress import working
from ragen_jax.terminal import say

_CONFIG = command.define_config()
_DEVICE = flags.DEFINE_string(
    "device",
    None,
    "Device to plan for, e.g. a100-40gb; default: the local device.",
)
_COMPILE = flags.DEFINE_bool(
    "compile",
    False,
    "Compile the programs and report XLA's count instead of the estimate; takes "
    "minutes for a large model.",
)
_TARGET = flags.DEFINE_string(
    "target",
    None,
    "Compile for this GPU, e.g. h100, on any machine with the extra [cuda], and report "
    "XLA's count.",
)
_TOPOLOGY = flags.DEFINE_string(
    "topology",
    "1x1x1",
    "With --target: 1xHOSTSxGPUS, e.g. 1x1x8 for a host of eight GPUs; their number "
    "must be mesh.data x mesh.fsdp x mesh.tensor.",
)
_SEARCH = flags.DEFINE_bool(
    "search", True, "If the run does not fit, search for smaller settings that do."
)

GIB = 2**30
# Devices of a CPU, for plans of meshes.
_MOST_OFFERED = 8
# Largest error of an estimate, and of the CPU's count of a GPU's rollout, see
# `ragen_jax/memory/programs.py`; as in the messages.
ESTIMATE_ERROR, OTHER_BACKEND_ERROR = 0.25, 0.05
# Most times that the CPU's count of a GPU's update is too high; as in the message.
OTHER_BACKEND_UPDATES = 1.8


def main(argv: list[str]) -> int:
    with lasting_objects(), working("loading JAX"):
        # Importing the games, as some configurations do, makes JAX look for devices.
        # Where the file has begun to use JAX itself there are as many as it counted.
        with contextlib.suppress(ValueError):
            _offer_devices(_MOST_OFFERED)
        config = command.read_config(_CONFIG, argv)
        devices, notes = _described_devices(config)
        if "mesh" in config and _num_devices(config) > _MOST_OFFERED:
            _offer_devices(_num_devices(config))
        from ragen_jax.config import validate
        from ragen_jax.memory.devices import detected_device, named_device
        from ragen_jax.memory.plan import make_plan, read_model
        from ragen_jax.memory.reduce import find_fix

    overrides = command.overridden_keys(argv)
    notes += _without_gpu(config, devices)
    validate(config, overrides)
    # Before anything is compiled, since the name may be unknown.
    name = _DEVICE.value or _TARGET.value
    device = named_device(name) if name else detected_device()
    model, tokenizer, more_notes = read_model(config.model.path)
    for note in notes + more_notes:
        say(f"note: {note}")
    if _is_compiled():
        say(
            "compiling the programs; about 3 minutes each for a 0.5B model (ignore "
            'XLA\'s "Very slow compile?")'
        )
    how = {
        "compiled": _is_compiled(),
        "on_cpu": device.kind == "cpu",
        "devices": devices,
        "watch": _timed,
    }
    plan = make_plan(config, model, tokenizer, **how)
    _print_plan(plan)
    error = _error(device, devices)
    say(f"accuracy: {_accuracy(device, devices)}")
    limit = _limit(device, config)
    # What is planned within it fits, whichever way the count is wrong.
    certain = int((1 - error) * limit)
    if plan.peak <= certain:
        say(_verdict(plan, device, limit, "fits"))
        return 0
    say(_verdict(plan, device, limit, _doubt(plan, limit, error)))
    if not _SEARCH.value:
        return 1
    room = f", with {100 * error:.0f} % to spare" if error else ""
    say(f"searching for a setting that fits{room}")
    for line in _choices_that_fit(config, argv, model, tokenizer, device):
        say(f"  {line}")
    fix = find_fix(config, model, tokenizer, plan, certain, report=_report, **how)
    if fix is None:
        say(f"none of the options in ragen_jax/memory/reduce.py makes it fit{room}")
        return 1
    say(_verdict(fix.plan, device, limit, "this fits"))
    say(f"  {' '.join(f'--config.{k}={v}' for k, v in fix.changes.items())}")
    say(f"its cost: {'; '.join(fix.costs)}")
    return 1


def _choices_that_fit(config, argv, model, tokenizer, device) -> Iterator[str]:
    """Presets of the model that fit, and the fewest devices over which it does.

    They are estimated, since each would be compiled for minutes. What needs more
    devices than JAX sees is named without an estimate.
    """
    import jax

    from launch.plan_choices import more_devices, other_presets
    from ragen_jax.config import validate
    from ragen_jax.memory.plan import make_plan

    source = config_flags.get_config_filename(flags.FLAGS["config"])
    larger = []
    for choices in (
        other_presets(config, source, command.overridden_keys(argv)),
        # The devices of a CPU are all in one memory.
        () if device.kind == "cpu" else more_devices(config),
    ):
        for words, other in choices:
            num_devices = _num_devices(other)
            if num_devices > jax.device_count():
                larger.append(f"{words} ({num_devices})")
                continue
            try:
                validate(other)
                plan = make_plan(other, model, tokenizer, on_cpu=device.kind == "cpu")
            except ValueError:
                continue  # these rows or heads cannot be split like this
            if plan.peak <= (1 - ESTIMATE_ERROR) * _limit(device, other):
                count = f", {num_devices} devices" if num_devices > 1 else ""
                yield f"fits: {words} ({plan.peak / GIB:.3f} GiB, estimated{count})"
                break
    if larger:
        yield (
            f"on more devices than the {jax.device_count()} here, not planned: "
            f"{', '.join(larger)}; JAX_PLATFORMS=cpu with --device plans them"
        )


def _limit(device, config) -> int:
    """Bytes that a run may use on each of its devices."""
    # The devices of a CPU are all in one memory.
    return device.limit // (_num_devices(config) if device.kind == "cpu" else 1)


def _error(device, devices: list | None) -> float:
    """Share by which the count of a plan may be wrong."""
    import jax

    if not _is_compiled():
        return ESTIMATE_ERROR
    is_other = devices is None and jax.default_backend() != device.kind
    return OTHER_BACKEND_ERROR if is_other else 0.0


def _doubt(plan, limit: int, error: float) -> str:
    """The verdict on a plan that does not certainly fit, by the error of `_error`."""
    if abs(plan.peak / limit - 1) < error:
        return f"too close to tell, as the count may be off by {100 * error:.0f} %"
    if error == OTHER_BACKEND_ERROR:
        least = {name: (1 - error) * plan.peak_of(name) for name in plan.memory}
        least["update"] = plan.peak_of("update") / OTHER_BACKEND_UPDATES
        if max(least.values()) <= limit:
            return (
                "too close to tell, as the update may be counted "
                f"{OTHER_BACKEND_UPDATES:g} times too high"
            )
    return "does not fit"


def _is_compiled() -> bool:
    return _COMPILE.value or _TARGET.value is not None


def _num_devices(config) -> int:
    """Devices that learn, and further ones that play."""
    players = config.rollout.devices if config.rollout.ahead else None
    mesh = config.mesh
    return mesh.data * mesh.fsdp * mesh.tensor + (players or 0)


def _offer_devices(num_devices: int) -> None:
    """Let JAX split a CPU into as many devices as the mesh has, or another may have."""
    import jax

    if "device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        raise ValueError(
            f"the mesh has {num_devices} devices, but JAX counted those of this CPU "
            "when the game was imported; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={num_devices}"
        ) from error


def _described_devices(config) -> tuple[list | None, list[str]]:
    """Devices that `--target` describes, None for those of JAX; and notes."""
    from ragen_jax import install_command
    from ragen_jax.memory import targets

    if _TARGET.value is None and _TOPOLOGY.present:
        raise ValueError(
            f"--topology={_TOPOLOGY.value} needs --target, the kind of its GPUs: one "
            f"of {', '.join(targets.TARGETS)}"
        )
    if _TARGET.value is None or "mesh" not in config:
        return None, []
    if config.rollout.ahead:
        raise ValueError(
            f"--target={_TARGET.value} counts the programs of one mesh, but "
            "rollout.ahead = 1 plays on another one; leave --target out to estimate "
            "both, or add --config.rollout.ahead=0"
        )
    target = targets.named_target(_TARGET.value)
    targets.check_mesh(config.mesh.to_dict(), _TOPOLOGY.value)
    if targets.has_compiler():
        targets.prepare_compiler()
        return targets.describe_devices(target, _TOPOLOGY.value), []
    return None, [
        "XLA's compiler for NVIDIA's GPUs is not installed: these are counts of the "
        f"CPU's programs; for those of {target.name}: {install_command('cuda')}"
    ]


# Keys, and their values that cannot be built without a GPU.
NEED_A_GPU = {"model.attention": "cudnn", "rollout.decode_attention": "triton"}


def _without_gpu(config, devices: list | None) -> list[str]:
    """Replace attention that cannot be built here by "auto"; returns notes."""
    import jax

    from ragen_jax.models.attention import AUTO
    from ragen_jax.registry.settings import flatten

    if devices is not None or jax.default_backend() == "gpu":
        return []
    notes = []
    for key, name in NEED_A_GPU.items():
        if flatten(config).get(key) == name:
            config.update_from_flattened_dict({key: AUTO})
            notes.append(
                f"planned with {key} = {AUTO!r}: {name!r} cannot be built without a "
                "GPU or --target; --compile counts the CPU's attention"
            )
    return notes


def _accuracy(device, devices: list | None) -> str:
    import jax

    if devices is not None:
        return (
            f"XLA's count for {len(devices)} x {devices[0].device_kind} (described):"
            " settings that XLA tunes by measuring keep their defaults"
        )
    backend = jax.default_backend()
    if not _is_compiled() and device.kind == "cpu":
        return (
            "estimated by formula for a CPU, within 25 % of XLA's count either way "
            "(--compile takes that count)"
        )
    if not _is_compiled():
        return (
            f"estimated by formula for {device.name}, within 25 % of what XLA counts "
            "for an H100 either way; too high for the updates of small float32 models "
            f"(--compile takes XLA's count for the {backend} of this machine)"
        )
    if backend == device.kind:
        return f"XLA's count for the {backend} of this machine"
    return (
        f"XLA's count for a {backend}, not for {device.name}: bfloat16 is widened "
        "there, so that updates are too high by up to 1.8 times; rollouts are within "
        "5 % of the count for an H100"
    )


@contextlib.contextmanager
def _timed(program: str) -> Iterator[None]:
    print(f"  compiling the {program} ... ", end="", flush=True)
    began = time.perf_counter()
    try:
        yield
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
    except BaseException:
        print(flush=True)
        raise


def _report(line: str) -> None:
    say(f"  tried {line}")


def _print_plan(plan) -> None:
    print("parameters")
    for name, number in plan.counts.items():
        print(f"  {name:<42}{number:>15,}")
    if plan.pictures:
        print("pictures that the model sees at once, at most")
    for name, (count, tokens) in plan.pictures.items():
        print(f"  {name:<42}{count:>15,} of {tokens} tokens")
    print("bytes per device (GiB)")
    for name, size in plan.holdings.items():
        if size:
            print(f"  {name:<42}{size / GIB:>10.3f}")
    columns = ("arguments", "outputs", "temporary", "aliased", "elsewhere", "peak")
    print("programs per device (GiB)")
    print(f"  {'':<11}{''.join(f'{name:>11}' for name in columns)}")
    for name, memory in plan.memory.items():
        sizes = (memory.arguments, memory.outputs, memory.temporaries, memory.aliased)
        sizes += (plan.elsewhere[name], plan.peak_of(name))
        print(f"  {name:<11}{''.join(f'{size / GIB:>11.3f}' for size in sizes)}")


def _verdict(plan, device, limit: int, word: str) -> str:
    count = "counted" if _is_compiled() else "estimated"
    return (
        f"{word}: {plan.peak / GIB:.3f} GiB at most ({plan.largest}; {count}) of "
        f"{limit / GIB:.3f} GiB usable on {device.name}"
        f"{device.advice(plan.peak)}"
    )


if __name__ == "__main__":
    command.run(main, config="training")
