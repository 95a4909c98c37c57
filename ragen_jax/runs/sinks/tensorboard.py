"""The TensorBoard view of a run.

In: the run's settings, its records and sample episodes. Out: one event file with
scalars, a layout that groups them, histograms, settings, episodes as text and boards as
pictures. It is made from the record alone and can be drawn again at any time.
"""

import collections
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from ragen_jax.registry.metrics import name_pattern
from ragen_jax.runs.boards import draw_boards, png
from ragen_jax.runs.figures import HELD_OUT, SUCCESS, make_sections
from ragen_jax.runs.metrics import METRICS, declared, when_compiled
from ragen_jax.runs.reader import read_episodes
from ragen_jax.runs.sinks.base import OpenedRun, Record, Sink


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Imports inside find no such package, unless it is imported already."""
    is_hidden = package not in sys.modules
    if is_hidden:
        sys.modules[package] = None
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules[package]


# Where torch is installed, tensorboardX imports it for its annotations, which takes a
# second. Its functions that read tensors import it again, at their first call.
with _hidden("torch"):
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import hparams

# Sample episodes shown per iteration.
_EPISODES = 2

# Ends of the names of a metric with its interval: value, lower and upper end.
_INTERVAL = ("", "_low", "_high")


class EventFile(Sink):
    """One event file, drawn anew whenever the run resumes.

    Args:
      run: the run, whose settings are shown under "HParams".
    """

    def __init__(self, run: OpenedRun):
        self._events = SummaryWriter(str(run.workdir), flush_secs=10)
        self._events.add_custom_scalars(layout(run.games))
        self._first_tags = first_tags(run.games)
        if run.settings:
            success = [f"val-env/{game}/success" for game in run.games]
            self._add_settings(run.settings, success)
        for record in run.records:
            self.write(record)
        for iteration, path in run.episode_files.items():
            self.episodes(iteration, read_episodes(path))

    def write(self, record: Record) -> None:
        """Add the numbers of a record; a list of numbers becomes a histogram.

        What was measured `when_compiled` is left out: it would set the whole axis.
        """
        # A line without a time is shown at the time of drawing.
        step, when = record["iteration"], record.get("time")
        left_out = {"iteration", "time"} | when_compiled(record)
        for name, value in record.items():
            if name in left_out or value in (None, []):
                continue
            if isinstance(value, list):
                self._events.add_histogram(name, value, step, walltime=when)
            else:
                self._events.add_scalar(name, value, step, when)
                if name in self._first_tags:
                    self._events.add_scalar(self._first_tags[name], value, step, when)

    def episodes(self, iteration: int, episodes: Iterable[Mapping]) -> None:
        """Add the first episodes of each environment, as text and as pictures."""
        counts = collections.Counter()
        for episode in episodes:
            # Only runs of several environments name them.
            place = f"{episode['environment']}/" if "environment" in episode else ""
            index = counts[place]
            counts[place] += 1
            if index >= _EPISODES:
                continue
            text = "\n".join(f"    {line}" for line in _transcript(episode))
            self._events.add_text(f"episodes/{place}{index}", text, iteration)
            boards = shown_boards(episode["turns"])
            if boards:
                picture = draw_boards(boards, episode.get("legend", {}))
                self._add_picture(f"boards/{place}{index}", picture, iteration)

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()

    def _add_settings(self, settings: Mapping, metrics: Sequence[str]) -> None:
        """Add the settings to this run: `add_hparams` would make a second one.

        The session gets no end: the run may be resumed.
        """
        values = {name: _shown(value) for name, value in settings.items()}
        experiment, start, _ = hparams(values, dict.fromkeys(metrics, 0.0))
        for summary in (experiment, start):
            self._events.file_writer.add_summary(summary)

    def _add_picture(self, tag: str, picture: Image.Image, iteration: int) -> None:
        # TensorBoard's code for RGB is 3.
        image = Summary.Image(
            height=picture.height,
            width=picture.width,
            colorspace=3,
            encoded_image_string=png(picture),
        )
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._events.file_writer.add_summary(summary, iteration, time.time())


def first_tags(games: Sequence[str]) -> dict[str, str]:
    """Metrics of success -> their second tags, in the group that TensorBoard opens.

    Its first tab, "Time Series", sorts tags by character codes and opens the first two
    groups alone; a capital letter comes before all names of metrics.
    """
    labels = {HELD_OUT: "held-out", SUCCESS: "training"}
    return {
        metric.replace("{env}", game): f"Success/{label}/{game}"
        for game in games
        for metric, label in labels.items()
    }


def layout(games: Sequence[str]) -> dict[str, dict[str, list]]:
    """Groups of the "Custom Scalars" tab: the sections and panels of the report.

    Tags are regular expressions. A line with a declared interval is a separate chart
    per game, as TensorBoard draws intervals of single tags only.
    """
    groups = {}
    for section in make_sections(METRICS, with_special=True):
        charts = {}
        for panel in section.panels:
            for line in panel.lines:
                if _has_interval(line.metric):
                    charts |= _interval_charts(line.metric, games)
            tags = [f"^{name_pattern(line.metric)}$" for line in panel.lines]
            title = panel.title.removeprefix("{env}: ")
            charts[title] = ["Multiline", tags]
        groups[section.title] = charts
    return groups


def _has_interval(metric: str) -> bool:
    """Whether the ends of the metric's interval are declared, by the field {end}."""
    low = declared(f"{metric}_low")
    return low is not None and low.name.endswith("_{end}")


def _interval_charts(metric: str, games: Sequence[str]) -> dict[str, list]:
    """A chart per game of a metric with its 95 % interval."""
    names = {game: metric.replace("{env}", game) for game in games}
    return {
        f"{name}, 95 % interval": ["Margin", [f"{name}{end}" for end in _INTERVAL]]
        for name in names.values()
    }


def shown_boards(turns: Sequence[Mapping]) -> list:
    """The board before every turn, and the last one, where they were recorded."""
    boards = [turn["board"] for turn in turns if "board" in turn]
    after = [board for turn in turns for board in turn.get("boards_after", ())]
    return boards + after[-1:]


def _shown(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _transcript(episode: Mapping) -> list[str]:
    lines = []
    for turn in episode["turns"]:
        lines += turn["observation"].splitlines()
        lines += turn["reply"].splitlines()
        paid = ("reward", "penalty", "bonus")
        lines.append("  ".join(f"{name} {turn[name]:g}" for name in paid))
    lines.append(f"return {episode['return']:g}  success {episode['success']}")
    return lines
