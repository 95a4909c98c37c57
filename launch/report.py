"""Make an HTML page of finished or running runs, and figures for papers.

python -m launch.report runs/NAME [runs/OTHER ...] --output=report.html
python -m launch.report runs/a0 runs/a1 runs/b0 runs/b1 --names="vanilla;StarPO-S"
python -m launch.report runs/NAME --png=figures
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib

from absl import flags

from launch import written
from ragen_jax.runs.progress import working
from ragen_jax.runs.writer import write_text_atomically
from ragen_jax.terminal import say

_OUTPUT = flags.DEFINE_string(
    "output", None, "HTML file to write; default: report.html, or none with --png."
)
_PNG = flags.DEFINE_string(
    "png", None, "Folder for the figures as PNG files (needs matplotlib)."
)
_NAMES = flags.DEFINE_string(
    "names",
    None,
    'Names of the series in order, "a;b"; default: the settings that differ.',
)
_MAX_EPISODES = flags.DEFINE_integer(
    "max_episodes",
    400,
    "Largest number of sample episodes on the page, of all runs together.",
)


def main(words: list[str]) -> int:
    folders = [pathlib.Path(word) for word in words]
    if not folders:
        raise ValueError("name at least one run folder: launch.report runs/NAME")
    if _MAX_EPISODES.value < 0:
        raise ValueError(
            f"--max_episodes={_MAX_EPISODES.value}; it must be at least 0 (no viewer)"
        )
    written.check_files(_OUTPUT, is_renamed=True)
    written.check_folder(_PNG)
    with working(f"reading {len(folders)} run{'s' * (len(folders) > 1)}"):
        from ragen_jax.report.contents import make_contents
        from ragen_jax.report.page import make_page
        from ragen_jax.report.runs import read_runs
        from ragen_jax.report.series import make_series

        runs = read_runs(folders)
        names = _NAMES.value.split(";") if _NAMES.value else None
        series = make_series(runs, names)
        contents = make_contents(runs, series, max_episodes=_MAX_EPISODES.value)
    for group in series:
        say(f"{group.name}: {', '.join(run.name for run in group.runs)}")
    for sentence in contents["settings"]["repeated_seeds"]:
        say(f"note: {sentence}")
    if _PNG.value:
        from ragen_jax.report.png import write_figures

        with working("drawing the figures"):
            paths = write_figures(contents, pathlib.Path(_PNG.value))
        for path in paths:
            say(f"{path} written")
        if not _OUTPUT.value:
            return 0
    output = pathlib.Path(_OUTPUT.value or "report.html")
    output.parent.mkdir(parents=True, exist_ok=True)
    page = make_page(contents)
    write_text_atomically(output, page)
    episodes = contents["episodes"]
    say(
        f"{output} written: {len(page) / 1e6:.1f} MB, {len(episodes['chosen'])} of "
        f"{episodes['total']} episodes in it"
    )
    for problem, count in episodes["skipped"].items():
        say(f"note: {count} malformed episodes are left out: {problem}")
    return 0


if __name__ == "__main__":
    command.run_on_words(main)
