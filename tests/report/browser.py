"""A real headless Chromium for the tests, driven by selenium.

Debian's packages `chromium` and `chromium-driver`, installed by `.ci/run`. Where they
are missing the tests are skipped; with RAGEN_JAX_REQUIRE_LIVE=1 that is a failure.
"""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # No smooth scrolling: what is clicked must not move.
    "--force-prefers-reduced-motion",
    "--window-size=1280,1000",
)


def require() -> None:
    """Skip, or fail where it must be there, without a browser."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if importlib.util.find_spec("selenium") is None:
        missing.append("selenium")
    if not missing:
        return
    if os.environ.get("RAGEN_JAX_REQUIRE_LIVE") == "1":
        pytest.fail(f"RAGEN_JAX_REQUIRE_LIVE=1, but there is no {', '.join(missing)}")
    pytest.skip(f"needs {', '.join(missing)}")


@contextlib.contextmanager
def open_browser(profile) -> Iterator:
    """A driver with a profile folder of its own that keeps the console's log."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()
