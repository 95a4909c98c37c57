"""The same run again: does it end with the same bits?

In: the folder of a finished run, and of the run that repeats it. Out: what to train,
and whether the digests of the final parameters are equal.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from ragen_jax.runs import machine, reader


@dataclasses.dataclass(frozen=True)
class Original:
    """A finished run that is to be repeated.

    Attributes:
      workdir: its folder.
      iteration: its last.
      params_sha256: digest of its final parameters.
      machines: on which it was trained, see `runs.machine`.
      references: the user's functions that took part.
    """

    workdir: pathlib.Path
    iteration: int
    params_sha256: str
    machines: tuple[Mapping[str, Any], ...]
    references: tuple[str, ...]

    def describe(self) -> str:
        """What is repeated, and why the digests may differ here."""
        lines = [
            f"repeating {self.workdir}: {self.iteration} iterations, params sha256 "
            f"{self.params_sha256}"
        ]
        now = machine.describe_machine(self.references)
        for then in self.machines:
            if changes := machine.describe_difference(then, now):
                lines.append(
                    f"note: made with other code or on another machine ({changes}), "
                    "so the bits may differ"
                )
        return "\n".join(lines)

    def compare(self, workdir: pathlib.Path) -> tuple[bool, str]:
        """Whether the finished run in `workdir` agrees, and a sentence that says so."""
        repeated = open_original(workdir)
        if repeated.params_sha256 == self.params_sha256:
            return True, f"reproduced: {workdir} has the same bits as {self.workdir}"
        ends = [
            f"{run.workdir} ends after iteration {run.iteration} with "
            f"{run.params_sha256}"
            for run in (self, repeated)
        ]
        return False, f"not reproduced: {ends[0]}, {ends[1]}"


def open_original(workdir: pathlib.Path) -> Original:
    """A finished run.

    Raises:
      ValueError: it has not finished, or an earlier version made it.
    """
    recorded = reader.read_recorded(workdir)
    if recorded.result is None:
        raise ValueError(
            f"{workdir} has recorded no digest of its final parameters: it has not "
            "finished, or an earlier version made it; resume it with "
            f"--workdir={workdir} and its configuration, which records the digest"
        )
    return Original(
        workdir,
        recorded.result["iteration"],
        recorded.result["params_sha256"],
        machines=tuple(recorded.machines),
        references=tuple(machine.references(reader.read_config(workdir))),
    )
