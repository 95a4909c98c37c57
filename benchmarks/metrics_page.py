"""Write the tables of docs/metrics.md from the declarations of the metrics.

    python -m benchmarks.metrics_page

In: the page and `ragen_jax.runs.metrics`. Out: the page, with a new table between each
pair of the comments `<!-- metrics: SECTION -->` and `<!-- end -->`.
"""

import pathlib
import re
from collections.abc import Sequence

from ragen_jax.registry.metrics import Metric
from ragen_jax.runs import markdown
from ragen_jax.runs.metrics import DISTRIBUTIONS, METRICS

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "metrics.md"
_MARK = re.compile(r"<!-- metrics: (\w+) -->")


def fill(page: str) -> str:
    """The page with new tables.

    Raises:
      ValueError: a section of the metrics has no table, or a table no metrics.
    """
    metrics = (*METRICS, *DISTRIBUTIONS)
    sections = {metric.section for metric in metrics}
    tables = set(_MARK.findall(page))
    if sections != tables:
        raise ValueError(
            f"{PAGE} has tables of {sorted(tables)}, the metrics are of the sections "
            f"{sorted(sections)}; give every section one pair of comments"
        )
    for section in sections:
        rows = [metric for metric in metrics if metric.section == section]
        page = markdown.replace_marked(page, f"metrics: {section}", table(rows))
    return page


def table(metrics: Sequence[Metric]) -> str:
    """Metrics as a Markdown table, without the columns that none of them fills."""
    columns = {
        "metric": [f"`{_shown(metric.name)}`" for metric in metrics],
        "meaning": [metric.text for metric in metrics],
        "healthy": [metric.healthy for metric in metrics],
        "otherwise": [metric.cure for metric in metrics],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    rows = zip(*columns.values(), strict=True)
    return markdown.table(list(columns), rows) + "\n"


def _shown(name: str) -> str:
    """Fields as `<field>`."""
    return re.sub(r"\{(\w+)\}", r"<\1>", name)


def main() -> None:
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
