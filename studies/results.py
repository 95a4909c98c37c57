"""A study with the records of its arms, judged.

In: a study and the folder of its records. Out: `StudyResults`, which pages and figures
are made from.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studies.claims import Study, Verdict, judge
from studies.records import RunRecord, read_arm


class StudyResults(NamedTuple):
    """A study with what came of it.

    Attributes:
      study: of the table.
      runs: by arm; an arm that has not been run is missing.
      verdicts: by the claims' texts; those with missing arms have none.
      num_failed: by arm, runs that diverged and are not among the others.
    """

    study: Study
    runs: Mapping[str, Sequence[RunRecord]]
    verdicts: Mapping[str, Verdict]
    num_failed: Mapping[str, int]

    @property
    def missing(self) -> list[str]:
        """Names of the arms without a record."""
        return [arm.name for arm in self.study.arms if arm.name not in self.runs]


def read_study(study: Study, folder: pathlib.Path) -> StudyResults:
    """The records of a study's arms, judged.

    Raises:
      ValueError: a record is damaged.
    """
    runs, num_failed = {}, {}
    for arm in study.arms:
        if (record := read_arm(folder, arm.name)) is not None:
            runs[arm.name] = [run for run in record.runs if run.seed in arm.seeds]
            num_failed[arm.name] = len(record.failed)
    verdicts = {
        claim.text: judge(claim, runs)
        for claim in study.claims
        if all(arm.name in runs for arm in claim.test.arms)
    }
    return StudyResults(study, runs, verdicts, num_failed)
