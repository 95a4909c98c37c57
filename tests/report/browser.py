"""A real headless Chromium for the tests, driven by selenium.

Debian's packages `chromium` and `chromium-driver`, installed by `.ci/run`. Where they
are missing the tests are skipped; with RAGEN_JAX_REQUIRE_LIVE=1 that is a failure.
"""

import contextlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator

import pytest

from ragen_jax.report.contents import make_contents
from ragen_jax.report.page import make_page
from ragen_jax.report.runs import read_runs
from ragen_jax.report.series import make_series

# Of the page that most tests look at.
MAX_EPISODES = 120

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


def write_page(folder, runs, **options):
    found = read_runs(runs)
    contents = make_contents(found, make_series(found), **options)
    path = folder / "report.html"
    path.write_text(make_page(contents), encoding="utf-8")
    return path


def open_page(driver, path):
    driver.get_log("browser")
    driver.get(path.as_uri())
    # Figures are drawn once they know their width.
    wait_for(driver, "return document.querySelectorAll('figure svg[viewBox]').length")


def wait_for(driver, script):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 20).until(lambda d: d.execute_script(script))


def choose(driver, name, value):
    """Set a filter as a user would: by typing, choosing or ticking."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    control = driver.find_element(By.ID, name)
    if control.tag_name == "select":
        Select(control).select_by_value(value)
    elif control.get_attribute("type") == "checkbox":
        control.click()
    else:
        control.clear()
        control.send_keys(value)


def counts(driver):
    text = driver.execute_script("return document.getElementById('count').textContent")
    return [int(number) for number in re.findall(r"\d+", text)][:3]
