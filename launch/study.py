r"""Run a named study: which claims about agent RL hold here, judged by fixed tests.

python -m launch.study --list
python -m launch.study --name=starpo_s
python -m launch.study --name=all --quick
python -m launch.study --pages

What is compared and how it is judged is written in `studies/`, before the runs.
Settings that several studies share are run once; run the same command again to continue
an interrupted study. --output gets runs/ARM.json as results come, and NAME.md and
NAME.png for every study; docs/findings.md explains them. On two cores all studies take
five hours; with --quick 15 minutes, and some for suites.

Exit status: 0 when all runs are finished, 1 when some failed, 130 or 143 when a signal
stopped them.
"""

from launch import command  # isort: skip, it says what is not installed

import dataclasses
import pathlib

from absl import flags

from ragen_jax.runs.progress import working
from ragen_jax.terminal import say

_NAME = flags.DEFINE_string("name", None, "Studies, with commas between them, or all.")
_LIST = flags.DEFINE_bool(
    "list", False, "List the studies and how many runs they take, and end."
)
_QUICK = flags.DEFINE_bool(
    "quick", False, "Shorten every run, one seed each: shows that it works, no more."
)
_PAGES = flags.DEFINE_bool(
    "pages",
    False,
    "Make the pages and figures of all studies anew from their records; run nothing.",
)
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the runs (runs/study; with --quick runs/study-quick)."
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder of the results (docs/study; with --quick the --workdir)."
)
_FINDINGS = "findings.md"
# Records are written, and can be committed, after every few runs. Shortened ones
# mostly compile: all go in one batch, whose runs share what is compiled.
_RUNS_AT_A_TIME = 20


def main(argv: list[str]) -> int:
    with working("loading JAX"):
        command.enable_compilation_cache()
        from studies.configs import arm_config
        from studies.pages import count_verdicts, write_pages
        from studies.run import is_kept, run_arms
        from studies.table import ALL, STUDIES, distinct_arms, find_studies

    if _LIST.value:
        say(_listed(STUDIES.values()))
        return 0
    names = _NAME.value or (ALL if _PAGES.value else None)
    if not names:
        raise ValueError("no study named; add e.g. --name=starpo_s, or see --list")
    studies, is_quick = find_studies(names), _QUICK.value
    name = "study-quick" if is_quick else "study"
    workdir = pathlib.Path(_WORKDIR.value or f"runs/{name}")
    output = pathlib.Path(_OUTPUT.value or (workdir if is_quick else "docs/study"))
    for flag, folder in (("workdir", workdir), ("output", output)):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"--{flag}={folder} is a file; name a folder")
    with working("checking records and settings"):
        arms = distinct_arms(STUDIES.values())
        if is_quick:
            arms = [dataclasses.replace(arm, num_seeds=1) for arm in arms]
        pairs = [(arm, arm_config(arm, is_quick=is_quick)) for arm in arms]
        # Refuses records made under other settings: pages show all of them.
        done = {arm.name for arm, config in pairs if is_kept(output, arm, config)}
    if _PAGES.value and not done:
        raise ValueError(
            f"there are no records in {output / 'runs'}; run a study first, or name "
            "the folder of its results with --output"
        )
    named = {arm.name for arm in distinct_arms(studies)} - done
    due = [] if _PAGES.value else [pair for pair in pairs if pair[0].name in named]
    status = 0
    for some in _batched(due, len(due) if is_quick else _RUNS_AT_A_TIME):
        status = max(status, run_arms(some, workdir, output))
        if status > 1:
            break
    with working("making pages and figures"):
        # Arms belong to several studies.
        results = write_pages(STUDIES.values(), output, is_quick=is_quick)
        if not is_quick:
            _write_overview(results, output)
    for one in results:
        if one.study in studies:
            counts = count_verdicts(one).items()
            words = ", ".join(f"{count} {word}" for word, count in counts if count)
            say(f"{one.study.name}, {len(one.study.claims)} claims: {words}")
    say(f"everything is in {output}")
    return status


def _batched(pairs, num_runs_at_a_time: int):
    """Arms and their configurations in order, so many runs to a batch."""
    batch, num_runs = [], 0
    for arm, config in pairs:
        batch.append((arm, config))
        num_runs += arm.num_seeds
        if num_runs >= num_runs_at_a_time:
            yield batch
            batch, num_runs = [], 0
    if batch:
        yield batch


def _listed(studies) -> str:
    lines = []
    for study in studies:
        num_runs = sum(arm.num_seeds for arm in study.arms)
        lines.append(
            f"{study.name:<12} {study.title} ({len(study.arms)} arms, {num_runs} runs, "
            f"{len(study.claims)} claims)"
        )
    return "\n".join(lines)


def _write_overview(results, output: pathlib.Path) -> None:
    from ragen_jax.runs import markdown
    from ragen_jax.runs.writer import write_text_atomically
    from studies.pages import MARK, make_overview

    path = output.parent / _FINDINGS
    text = path.read_text("utf-8") if path.is_file() else ""
    if f"]({output.name}/" in text:
        overview = make_overview(results)
        write_text_atomically(path, markdown.replace_marked(text, MARK, overview))


if __name__ == "__main__":
    command.run(main)
