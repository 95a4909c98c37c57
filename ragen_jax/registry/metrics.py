"""Declarations of metrics.

A metric is declared once; the program records, draws and documents what is declared.
"""

import dataclasses
import re
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class View:
    """A line of a figure: a panel of the report, a chart of TensorBoard.

    Attributes:
      title: of the panel. Metrics of one section and one title share a panel, which
        takes its unit and its kind from the first; `{env}` in it makes a panel per
        environment.
      unit: label of the vertical axis.
      name: metric drawn, where the declaration's name covers several; "": the name.
      label: of the line, where a panel has several.
      style: "main" (with its band), "thin" or "reference" (dashed).
      needs: metric that is above 0 in some iteration of a run where this one means
        something; the report draws it of no other run. "": it always does.
      section: key of the section, where it is not the metric's own.
      console: label on the line that every iteration prints; "": not printed.
      is_special: the report draws it in a figure of another kind; TensorBoard, which
        has lines only, as a line.
    """

    title: str
    unit: str = ""
    name: str = ""
    label: str = ""
    style: str = "main"
    needs: str = ""
    section: str = ""
    console: str = ""
    is_special: bool = False


@dataclasses.dataclass(frozen=True)
class Metric:
    """Declaration of a metric: everything the program says or draws of it.

    Attributes:
      name: as in `metrics.jsonl`. A field in braces stands for several names, see
        `FIELDS`; `{env}` is the name of an environment.
      text: meaning, for docs/metrics.md.
      section: key of a section of docs/metrics.md and, where it has views, of the
        report and of TensorBoard's layout (`ragen_jax.runs.figures.SECTIONS`).
      kind: how values read: "number", "share" (in per cent) or "seconds".
      views: where the metric is drawn; most are drawn nowhere but under "Any metric".
      healthy: what a run that learns looks like.
      cure: what to do where it does not look so.
      value: function that computes it; its argument is documented at the table that
        the declaration belongs to. None where several metrics are computed together.
    """

    name: str
    text: str
    section: str
    kind: str = "number"
    views: tuple[View, ...] = ()
    healthy: str = ""
    cure: str = ""
    value: Callable | None = None

    @property
    def key(self) -> str:
        """Last part of the name."""
        return self.name.rsplit("/", 1)[-1]

    def matches(self, name: str) -> bool:
        """Whether a recorded name is one of this declaration's."""
        return re.fullmatch(name_pattern(self.name), name) is not None


# Field of a metric's name -> regular expression of what it stands for.
FIELDS = {
    "split": "(train|val-env)",
    "env": "[^/]+",
    "k": "[0-9]+",
    "turns": "(first_turn|trajectory)",
    "form": "(|_seq|_paper|_uniform|_seq_uniform)",
    "rank": "(|@[0-9]+)",
    "bucket": "(bucket_[0-9]+|all)",
    "part": "(task|entropy|kl)",
    "loss": "(policy|entropy|kl|total)",
    "statistic": "(mean|min|max)",
    "end": "(low|high)",
    "stage": "[a-z_]+",
    "indicator": "[a-z0-9_]+",
    "number": "[a-z0-9_]+",
}


def name_pattern(name: str) -> str:
    """Regular expression of the names that a declared name stands for."""
    parts = re.split(r"\{(\w+)\}", name)
    # Text and fields alternate; text comes first.
    return "".join(
        FIELDS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
