"""Pages of studies: a table of verdicts, a table of arms and a figure each.

In: studies and the folder of their records. Out: `NAME.md` and `NAME.png` in that
folder, and the table of all verdicts between two marks of the page of findings.
Pages are made from the records alone; no run is started.
"""

import pathlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ragen_jax.evaluation.statistics import bootstrap_interval
from ragen_jax.runs.markdown import table
from ragen_jax.runs.writer import write_text_atomically
from studies.claims import NOT_REPRODUCED, OPPOSITE, REPRODUCED, Study, Verdict
from studies.figures import write_figure
from studies.measures import MEASURES, format_value
from studies.records import RunRecord
from studies.results import StudyResults, read_study

# Name of the mark in the page of findings.
MARK = "verdicts"
_NOT_RUN = "not run yet"
_KEY = (
    "In figures a dot is a run and a bar the mean of the runs; a line is their mean, "
    "with a band from the lowest to the highest where lines are few."
)
_QUICK = "**Of shortened runs, which show that the study works and nothing else.**\n\n"


def make_page(found: StudyResults, *, is_quick: bool) -> str:
    """The page of a study as Markdown."""
    study = found.study
    claims = [
        (claim.text, _word(verdict), "" if verdict is None else verdict.found)
        for claim in study.claims
        for verdict in (found.verdicts.get(claim.text),)
    ]
    measures = [MEASURES[name] for name in study.columns]
    columns = ("arm", "runs", *(measure.label for measure in measures))
    arms = [
        (
            study.label(arm),
            _count(len(found.runs[arm.name]), found.num_failed[arm.name]),
            *(_mean(found.runs[arm.name], name) for name in study.columns),
        )
        for arm in study.arms
        if arm.name in found.runs
    ]
    missing = f"\nNot run yet: {', '.join(found.missing)}.\n" if found.missing else ""
    return (
        f"# {study.title}\n\n{_QUICK if is_quick else ''}{study.question}\n\n"
        f"What the paper says: {study.paper}\n\n"
        f"```sh\npython -m launch.study --name={study.name}\n```\n\n"
        f"![{study.title}]({study.name}.png)\n\n{_KEY}\n\n"
        f"{table(('claim', 'verdict', 'effect'), claims)}\n\n"
        f"An effect is positive in the direction of the claim; of a claim with a "
        f"threshold it is what exceeds that. In brackets its 95 % bootstrap interval "
        f"over runs. How claims are judged: "
        f"[findings](../findings.md#how-claims-are-judged).\n\n"
        f"{table(columns, arms)}\n{missing}"
    )


def _count(finished: int, failed: int) -> str:
    return f"{finished}, {failed} failed" if failed else str(finished)


def _word(verdict: Verdict | None) -> str:
    if verdict is None:
        return _NOT_RUN
    return f"**{verdict.word}**" if verdict.word != NOT_REPRODUCED else verdict.word


def _mean(runs: Sequence[RunRecord], name: str) -> str:
    """Mean over the runs that have a measure, with its interval."""
    measure = MEASURES[name]
    values = [x for run in runs if (x := measure.value(run)) is not None]
    if not values:
        return ""
    interval = bootstrap_interval(values)
    if interval is not None and interval[0] == interval[1]:
        interval = None
    text = format_value(float(np.mean(values)), measure.form, interval)
    return text + (
        f" ({len(values)} of {len(runs)})" if len(values) < len(runs) else ""
    )


def make_overview(all_found: Sequence[StudyResults]) -> str:
    """A row for each study: how many of its claims came to which verdict."""
    rows = [
        (
            f"[{found.study.title}](#{found.study.name})",
            len(found.study.claims),
            *(count or "" for count in count_verdicts(found).values()),
        )
        for found in all_found
    ]
    heads = ("finding", "claims", REPRODUCED, NOT_REPRODUCED, OPPOSITE, _NOT_RUN)
    return table(heads, rows) + "\n"


def count_verdicts(found: StudyResults) -> dict[str, int]:
    """How many claims came to each verdict, and how many have none yet."""
    words = Counter(verdict.word for verdict in found.verdicts.values())
    counts = {word: words[word] for word in (REPRODUCED, NOT_REPRODUCED, OPPOSITE)}
    return counts | {_NOT_RUN: len(found.study.claims) - words.total()}


def write_pages(
    studies: Sequence[Study], folder: pathlib.Path, *, is_quick: bool
) -> list[StudyResults]:
    """Write page and figure of every study that has a record."""
    all_found = [read_study(study, folder) for study in studies]
    for found in all_found:
        if found.runs:
            name = found.study.name
            page = make_page(found, is_quick=is_quick)
            write_text_atomically(folder / f"{name}.md", page)
            write_figure(found, folder / f"{name}.png")
    return all_found
