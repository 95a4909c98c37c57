"""A run's programs, compiled for GPUs that are not there, and what they would do.

    python -m benchmarks.gpu_program --config=configs/sokoban.py:qwen2.5-0.5b
    python -m benchmarks.gpu_program --config=configs/sokoban.py:qwen2.5-3b \
        --config.mesh.fsdp=8 --topology=1x1x8 --programs=update --json=FILE

Prints Markdown: memory by kind and the largest buffers with the line they come from;
kernels and bytes of a decoded token and of a layer's pass, beside what must move;
copies of whole caches or weights; exchanges between devices; the least time by bytes,
arithmetic and launches. Needs the extra `[cuda]`, and no GPU. What XLA tunes by
measuring keeps its defaults: no time here was measured.
"""

import math
import pathlib
import tempfile
import time

from absl import flags

from benchmarks import gpu_figures, harness, hlo, runs
from launch import command

_CONFIG = command.define_config()
_TARGET = flags.DEFINE_string("target", "h100", "GPU, see ragen_jax/memory/targets.py.")
_TOPOLOGY = flags.DEFINE_string("topology", "1x1x1", "1xHOSTSxGPUS.")
_PROGRAMS = flags.DEFINE_list("programs", "rollout,evaluation,update", "Which.")
_LIVE = flags.DEFINE_float("live", 0.5, "Share of the slots that are filled.")
_SAVE = flags.DEFINE_string("save", None, "Folder for the texts of the programs.")
harness.define_json()

GIB = 2**30
NUM_BUFFERS = 8


def main(argv: list[str]) -> int:
    config = command.read_config(_CONFIG, argv)
    from ragen_jax.memory import targets

    target = targets.named_target(_TARGET.value)
    targets.check_mesh(config.mesh.to_dict(), _TOPOLOGY.value)
    runs.prepare_devices(target, math.prod(config.mesh.values()))
    from ragen_jax.config import validate
    from ragen_jax.program.lowering import PROGRAMS

    unknown = set(_PROGRAMS.value) - set(PROGRAMS)
    if unknown:
        raise ValueError(
            f"no program {min(unknown)!r}; choose of {', '.join(PROGRAMS)}"
        )
    validate(config, command.overridden_keys(argv))
    parts, batch = runs.describe(config, target, _TOPOLOGY.value)
    figures = {}
    for name in _PROGRAMS.value:
        figures[name] = measure(config, parts, batch, name, target)
        print_figures(name, figures[name])
    harness.write_json({"target": target.name, "programs": figures})
    return 0


def measure(config, parts, batch, name: str, target) -> dict:
    """Figures of the largest program of a name."""
    from ragen_jax.memory.programs import memory_of
    from ragen_jax.memory.targets import hosts_and_devices
    from ragen_jax.program.lowering import lower

    candidates = []
    for lowered in lower(parts, name, batch):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            compiled = lowered.compile({"xla_dump_to": folder})
            seconds = time.perf_counter() - began
            (report,) = pathlib.Path(folder).glob("*memory-usage-report.txt")
            texts = compiled.as_text(), report.read_text()
            candidates.append((memory_of(compiled), seconds, *texts))
    memory, seconds, text, report = max(candidates, key=lambda entry: entry[0].peak)
    if _SAVE.value:
        folder = pathlib.Path(_SAVE.value)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.hlo").write_text(text)
    program = hlo.Program(text)
    figures = {
        "compile_s": seconds,
        "memory": {
            "arguments": memory.arguments,
            "outputs": memory.outputs,
            "temporaries": memory.temporaries,
            "aliased": memory.aliased,
            "peak": memory.peak,
        },
        "buffers": gpu_figures.largest_buffers(report, program, NUM_BUFFERS),
        "exchanges": gpu_figures.exchanges(text, hosts_and_devices(_TOPOLOGY.value)[1]),
    }
    if name == "update":
        layer = min(
            x.size * parts.policy.dtype.itemsize
            for x in _matrices(parts.learner.played["layers"]["0"])
        )
        figures["copies"] = gpu_figures.copies(program, layer)
        return figures | _update(config, parts, batch, program, target)
    cache, decoding = _decoding(config, parts, name, program, target)
    figures["copies"] = gpu_figures.copies(program, cache)
    return figures | {"decode": decoding}


def _matrices(tree) -> list:
    import jax

    return [x for x in jax.tree.leaves(tree) if x.ndim > 1]


def _decoding(config, parts, name: str, program, target) -> tuple[int, dict]:
    """Bytes of a layer's keys; figures of a token of every row."""
    from ragen_jax.memory.sizes import cache_bytes, local_rows

    rows = config.rollout.num_groups * config.rollout.group_size
    if name == "evaluation":
        rows = config.evaluation.num_prompts
    model, item = parts.model, parts.policy.dtype.itemsize
    slots = max(task.dialogue.max_window_tokens for task in parts.tasks) + 1
    cache, tensor = cache_bytes(parts, rows, slots), config.mesh.tensor
    shape = local_rows(parts, rows), model.vocab_size // tensor
    played = parts.learner.played
    weights = sum(x.size for x in _matrices(played["layers"])) * item // tensor
    weights += shape[1] * model.hidden_size * item
    must = weights + int(_LIVE.value * cache) + 4 * shape[0] * shape[1]
    layers = model.num_hidden_layers
    figures = gpu_figures.decode_figures(
        program,
        num_layers=layers,
        logits_shape=shape,
        must_move=must,
        live=_LIVE.value,
    )
    seconds = gpu_figures.least_seconds(
        moved=figures["bytes"],
        arithmetic=2 * shape[0] * weights / item,
        launches=figures["kernels"],
        target=target,
    )
    figures["seconds"] = seconds
    if config.rollout.read_chunk_tokens is not None:
        reading = gpu_figures.busiest_loop(program, "read")
        figures["reading"] = gpu_figures.work(program, reading)
    return cache // (2 * layers), figures


def _update(config, parts, batch, program, target) -> dict:
    model, sizes = parts.model, config.learner
    rows = max(1, sizes.microbatch_rows // (config.mesh.data * config.mesh.fsdp))
    tokens = rows * batch.tokens.shape[1]
    layer = parts.learner.played["layers"]["0"]
    weights = sum(x.size for x in _matrices(layer)) // config.mesh.tensor
    heads = model.num_attention_heads * model.head_dim // config.mesh.tensor
    # Products with weights, and attention, half of which is masked.
    forward = 2 * tokens * weights + 2 * tokens * batch.tokens.shape[1] * heads
    passes = gpu_figures.layer_passes(program, model.num_hidden_layers)
    for one in passes:
        # The backward pass repeats the forward pass and does twice its work.
        times = 3 if one["pass"] == "backward" else 1
        one["arithmetic"] = times * forward
        one["seconds"] = gpu_figures.least_seconds(
            moved=one["read"] + one["written"],
            arithmetic=one["arithmetic"],
            launches=one["kernels"],
            target=target,
        )
    return {"layers": passes}


def print_figures(name: str, figures: dict) -> None:
    """Markdown of a program's figures."""
    print(f"\n### {name}\n\ncompiled in {figures['compile_s']:.0f} s\n")
    sizes = {kind: f"{size / GIB:.3f}" for kind, size in figures["memory"].items()}
    print_rows([{"GiB": ""} | sizes])
    print_rows(
        {
            "MiB": f"{of['bytes'] / 2**20:,.0f}",
            "array": of["array"],
            "from": short(of["source"]),
        }
        for of in figures["buffers"]
    )
    if decode := figures.get("decode"):
        values = {
            "kernels": decode["kernels"],
            "kernels per layer": f"{decode['kernels_per_layer']:.1f}",
            "GB read and written": f"{decode['bytes'] / 1e9:.2f}",
            "GB that must move": f"{decode['must_move'] / 1e9:.2f}",
            "ratio": f"{decode['ratio']:.2f}",
            "passes over float32 logits": decode["logits_passes"],
            "least time": least(decode["seconds"]),
        }
        print_rows({"a token of every row": k, "": x} for k, x in values.items())
        if reading := decode.get("reading"):
            moved = (reading["read"] + reading["written"]) / 1e9
            print(
                f"reading a chunk of a message: {reading['kernels']} kernels, "
                f"{moved:.1f} GB\n"
            )
    if layers := figures.get("layers"):
        print_rows(
            {
                "a layer": of["pass"],
                "kernels": of["kernels"],
                "GB read": f"{of['read'] / 1e9:.2f}",
                "GB written": f"{of['written'] / 1e9:.2f}",
                "TFLOP": f"{of['arithmetic'] / 1e12:.2f}",
                "least time": least(of["seconds"]),
            }
            for of in layers
        )
    total = sum(of["bytes"] * of["count"] for of in figures["copies"])
    print(f"copies of whole caches or weights in loops: {total / GIB:.2f} GiB\n")
    for of in figures["copies"]:
        size = of["bytes"] / 2**20
        print(f"- {of['count']} x {size:,.0f} MiB, {of['depth']} loops deep")
    if figures["exchanges"]:
        print_rows(
            {
                "exchange": of["kind"],
                "where": of["where"],
                "in loops": of["depth"],
                "times": of["count"],
                "MB": f"{of['bytes'] / 1e6:.1f}",
            }
            for of in figures["exchanges"]
        )


def print_rows(rows) -> None:
    """A table, and what sets it off from the next."""
    harness.print_rows(rows)
    print(flush=True)


def least(seconds: dict) -> str:
    return f"{1e3 * seconds['least']:.2f} ms ({seconds['binds']})"


def short(source: str) -> str:
    """Of a line of this project, the path from its root."""
    root = str(pathlib.Path(__file__).parents[1])
    return source.removeprefix(f"{root}/")


if __name__ == "__main__":
    command.run(main, config="training")
