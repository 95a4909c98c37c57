"""The commands. Before the first of them: a sentence where nothing is installed."""

import importlib.util
import sys

_NEEDED = ("absl", "jax", "ml_collections", "rich")

if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
    sys.exit(
        f"error: {', '.join(missing)} cannot be imported by {sys.executable}; install "
        "the requirements by `make train`, which makes .venv, or by `python -m pip "
        "install -r requirements.txt`, and use that Python"
    )
