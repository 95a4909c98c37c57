"""The commands. Before the first of them: a sentence where nothing is installed."""

import importlib.util
import signal
import sys

_NEEDED = ("absl", "jax", "ml_collections", "rich")

if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
    sys.exit(
        f"error: {', '.join(missing)} cannot be imported by {sys.executable}; install "
        "the requirements by `make train`, which makes .venv, or by `python -m pip "
        "install -r requirements.txt`, and use that Python"
    )


def end_at_interrupt() -> None:
    """Ctrl-C ends the process at once, without a traceback, until `command.run`.

    Nothing is lost while a command imports what it needs; an extension that is being
    imported may swallow a KeyboardInterrupt. An ignored signal stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


# Python's word for the program while it looks for the module of `python -m`.
if sys.argv[0] == "-m":
    end_at_interrupt()
