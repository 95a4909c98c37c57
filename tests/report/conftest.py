"""A page with everything a report can draw, in a browser."""

import pytest

from tests.report import browser, fake_runs


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    browser.require()
    with browser.open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Two series of two seeds with everything a report can draw."""
    folder = tmp_path_factory.mktemp("full")
    runs = fake_runs.write_two_series(folder, seeds=2)
    return browser.write_page(folder, runs, max_episodes=browser.MAX_EPISODES)


@pytest.fixture
def page(driver, full):
    """The full report, freshly opened; its console must stay silent."""
    browser.open_page(driver, full)
    yield driver
    assert driver.get_log("browser") == []
