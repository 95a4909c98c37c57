"""From one GPU to 256: what compiled programs say, as one table and one figure.

    python -m benchmarks.scaling --json=benchmarks/results/scaling.json
    python -m benchmarks.scaling --json=FILE --output=docs/scaling.png --nocompile

Compiles every case that the file lacks by `benchmarks.gpu_program` (minutes each; needs
the extra `[cuda]` and no GPU) and adds it to the file; run it again after a stop.
No time here was measured: seconds are bytes and operations of the programs
at the rates of `ragen_jax/memory/targets.py`. "Nothing overlaps" adds them up,
"all overlaps" takes the largest; a real run lies in between.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

from absl import flags

from benchmarks import harness
from launch import command

_JSON = harness.define_json("benchmarks/results/scaling.json")
_OUTPUT = flags.DEFINE_string("output", None, "PNG file to draw.")
_COMPILE = flags.DEFINE_bool("compile", True, "Compile the cases that are missing.")

GPUS_PER_HOST = 8
# Batch of each GPU under weak scaling: the paper's.
GROUPS, GROUP_SIZE, MINIBATCH_ROWS = 8, 16, 32


@dataclasses.dataclass(frozen=True)
class Case:
    """A run on a number of GPUs.

    Attributes:
      model: size preset.
      scaling: "weak" (each GPU has the paper's batch) or "strong" (all of them have).
      mesh: data x fsdp.
      pass_rows: rows that a GPU learns from in a pass.
    """

    model: str
    scaling: str
    mesh: tuple[int, int]
    pass_rows: int = 4

    @property
    def gpus(self) -> int:
        return self.mesh[0] * self.mesh[1]

    @property
    def name(self) -> str:
        data, fsdp = self.mesh
        return f"{self.model} {self.scaling} {data}x{fsdp}"

    @property
    def times(self) -> int:
        """How many of the paper's batches there are."""
        return self.gpus if self.scaling == "weak" else 1

    @property
    def num_passes(self) -> int:
        """Passes of a GPU over its share of the rows, all groups kept."""
        rows = self.times * GROUPS * GROUP_SIZE // self.gpus
        return rows // self.pass_rows

    @property
    def minibatch_passes(self) -> int:
        """How many of them an optimizer step takes."""
        return self.times * MINIBATCH_ROWS // (self.gpus * self.pass_rows)

    def flags(self) -> list[str]:
        """Of `benchmarks.gpu_program`."""
        data, fsdp = self.mesh
        per_host = min(self.gpus, GPUS_PER_HOST)
        changes = {
            "mesh.data": data,
            "mesh.fsdp": fsdp,
            "rollout.num_groups": GROUPS * self.times,
            "learner.minibatch_rows": MINIBATCH_ROWS * self.times,
            "learner.microbatch_rows": self.pass_rows * self.gpus,
        }
        return [
            f"--config=configs/sokoban.py:{self.model}",
            f"--topology=1x{self.gpus // per_host}x{per_host}",
            "--programs=rollout,update",
            *(f"--config.{key}={value}" for key, value in changes.items()),
        ]


LAYERS = {"qwen2.5-0.5b": 24, "qwen2.5-3b": 36, "qwen2.5-7b": 28}
# In the order in which they are compiled: the table sorts them.
CASES = (
    *(Case("qwen2.5-0.5b", "weak", mesh) for mesh in ((1, 1), (1, 8), (8, 8), (32, 8))),
    Case("qwen2.5-0.5b", "strong", (1, 8)),
    # A minibatch has 32 rows: there is nothing to do for a 33rd GPU.
    Case("qwen2.5-0.5b", "strong", (4, 8), pass_rows=1),
    *(Case(f"qwen2.5-{size}", "weak", (1, 8)) for size in ("3b", "7b")),
    *(Case(f"qwen2.5-{size}", "weak", (8, 8)) for size in ("3b", "7b")),
    *(Case(f"qwen2.5-{size}", "weak", (32, 8)) for size in ("3b", "7b")),
)


def compile_case(case: Case) -> dict:
    """Figures of a case, from a separate process.

    Raises:
      ValueError: the program could not be compiled.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [sys.executable, "-m", "benchmarks.gpu_program", *case.flags()]
        done = subprocess.run(
            [*words, f"--json={file.name}"], capture_output=True, text=True
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise ValueError(f"{case.name}: {said[-1]}")
        return summary(json.load(file)["programs"])


def summary(programs: dict) -> dict:
    """What the table needs of a case's programs."""
    rollout, update = programs["rollout"], programs["update"]
    decode = rollout["decode"]
    layers = update["layers"]
    return {
        "rollout_bytes": rollout["memory"]["peak"],
        "update_bytes": update["memory"]["peak"],
        "compile_s": rollout["compile_s"] + update["compile_s"],
        "token_s": decode["seconds"]["least"],
        "rollout_exchanges": rollout["exchanges"],
        "update_exchanges": update["exchanges"],
        "layer_arithmetic_s": sum(of["seconds"]["arithmetic"] for of in layers),
        "layer_bytes_s": sum(of["seconds"]["bytes"] for of in layers),
    }


def seconds(case: Case, figures: dict, target) -> dict[str, float]:
    """Of a pass of the update and of a whole iteration, all groups kept.

    Returns:
      `work`, `inside`, `between`: of a pass its arithmetic or its bytes, whichever
      takes longer, and its exchanges inside a host and between hosts, with its share
      of those that run once in a minibatch or in an update;
      `rollout`: an iteration's tokens at the least time, and what is received before
      the first.
    """
    received = {"in a host": 0.0, "between hosts": 0.0}
    for of in figures["update_exchanges"]:
        # Loops of unknown length are those over minibatches, in them those over passes,
        # and those over passes alone that compute values.
        if of["open_depth"] > 1 or of["is_innermost"]:
            passes = 1
        else:
            passes = case.minibatch_passes if of["open_depth"] else case.num_passes
        received[of["where"]] += of["bytes"] / passes
    # Once, before the first token.
    rates = {"in a host": target.link_rate, "between hosts": target.network_rate}
    first = sum(of["bytes"] / rates[of["where"]] for of in figures["rollout_exchanges"])
    return {
        "work": LAYERS[case.model]
        * max(figures["layer_arithmetic_s"], figures["layer_bytes_s"]),
        "inside": received["in a host"] / target.link_rate,
        "between": received["between hosts"] / target.network_rate,
        "rollout": TOKENS * figures["token_s"] + first,
    }


# Tokens of an episode, decoded one after the other.
TOKENS = 5 * 400


def share(of: dict[str, float], *, overlaps: bool) -> float:
    """Of a pass's time, the part that is not an exchange."""
    exchanged = of["inside"], of["between"]
    whole = of["work"] + sum(exchanged)
    if overlaps:
        whole = max(of["work"], *exchanged)
    return of["work"] / whole


def iteration(case: Case, of: dict[str, float], *, overlaps: bool) -> float:
    """Seconds of a rollout and of an update that keeps all groups, at least."""
    a_pass = of["work"] / share(of, overlaps=overlaps)
    return of["rollout"] + case.num_passes * a_pass


def print_table(known: dict[str, dict], target) -> None:
    cases = [case for case in CASES if case.name in known]
    cases.sort(key=lambda case: (case.model, case.scaling == "strong", case.gpus))
    rows = []
    for case in cases:
        figures = known[case.name]
        of = seconds(case, figures, target)
        first = sum(one["bytes"] for one in figures["rollout_exchanges"])
        shares = [share(of, overlaps=x) for x in (False, True)]
        whole = [iteration(case, of, overlaps=x) for x in (True, False)]
        row = {
            "model, scaling": f"{case.model}, {case.scaling}",
            "GPUs": case.gpus,
            "data x fsdp": f"{case.mesh[0]} x {case.mesh[1]}",
            "GiB, rollout": f"{figures['rollout_bytes'] / 2**30:.1f}",
            "GiB, update": f"{figures['update_bytes'] / 2**30:.1f}",
            "ms a token": f"{1e3 * figures['token_s']:.2f}",
            "received before a rollout, GB": f"{first / 1e9:.1f}",
            "a pass: work ms": f"{1e3 * of['work']:.0f}",
            "exchanges in a host ms": f"{1e3 * of['inside']:.0f}",
            "between hosts ms": f"{1e3 * of['between']:.0f}",
            "share of ideal": f"{shares[0]:.0%} to {shares[1]:.0%}",
            "iteration s": f"{whole[0]:.1f} to {whole[1]:.1f}",
        }
        rows.append(row)
    harness.print_rows(rows)


def draw(known: dict[str, dict], target, path: str) -> None:
    """Weak scaling: share of ideal of an update; strong: speed of an iteration."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (weak, strong) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for model, color in zip(LAYERS, ("#0072B2", "#D55E00", "#009E73"), strict=True):
        cases = [
            c
            for c in CASES
            if (c.model, c.scaling) == (model, "weak") and c.name in known
        ]
        if not cases:
            continue
        x = [case.gpus for case in cases]
        low, high = (
            [share(seconds(c, known[c.name], target), overlaps=overlaps) for c in cases]
            for overlaps in (False, True)
        )
        weak.fill_between(x, low, high, color=color, alpha=0.2)
        weak.plot(x, low, "o-", color=color, label=model)
    weak.set(
        title="Weak scaling of an update",
        xlabel="GPUs (line: nothing overlaps; area: up to all)",
        ylabel="share of ideal",
        ylim=(0, 1.05),
    )
    model = next(iter(LAYERS))
    cases = [Case(model, "weak", (1, 1))]
    cases += [c for c in CASES if (c.model, c.scaling) == (model, "strong")]
    cases = [case for case in cases if case.name in known]
    if not cases or cases[0].gpus > 1:
        raise ValueError(f"{_JSON.value} has no run of {model} on one GPU to compare")
    low, high = (
        [
            iteration(c, seconds(c, known[c.name], target), overlaps=overlaps)
            for c in cases
        ]
        for overlaps in (False, True)
    )
    x = [case.gpus for case in cases]
    for times, style in ((low, "o-"), (high, "o--")):
        strong.plot(x, [low[0] / t for t in times], style, color="#0072B2")
    strong.plot(x, x, ":", color="gray", label="ideal")
    strong.set(
        title=f"Strong scaling of an iteration, {model}",
        xlabel="GPUs (line: nothing overlaps; dashed: all)",
        ylabel="times as fast as one",
    )
    strong.set_yscale("log", base=2)
    strong.set_yticks(x, x)
    for axes in (weak, strong):
        axes.set_xscale("log", base=2)
        ticks = sorted({case.gpus for case in CASES})
        axes.set_xticks(ticks, ticks)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def read(path: pathlib.Path) -> dict[str, dict]:
    """Cases in a file, without what it says of the machine."""
    figures = json.loads(path.read_text()) if path.exists() else {}
    figures.pop("versions", None)
    return figures


def main(_: list[str]) -> int:
    from ragen_jax.memory import targets

    targets.prepare_compiler()
    target = targets.named_target("h100")
    if _COMPILE.value:
        targets.require_compiler(target)
    path = pathlib.Path(_JSON.value)
    figures = read(path)
    for case in CASES:
        if case.name in figures or not _COMPILE.value:
            continue
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        try:
            figures[case.name] = compile_case(case)
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        harness.write_json(figures)
    print_table(figures, target)
    if _OUTPUT.value:
        draw(figures, target, _OUTPUT.value)
    # Stopped or refused: the table lacks cases.
    return 1 if any(case.name not in figures for case in CASES) else 0


if __name__ == "__main__":
    command.run(main)
