"""The leaderboard in a real browser, opened from disk."""

import pathlib

import pytest

from launch.leaderboard_page import make_leaderboard_page
from ragen_jax.evaluation.leaderboard import MEASUREMENT, Board, Row, mean_success
from ragen_jax.evaluation.results import Score
from tests.report import browser

pytestmark = [pytest.mark.live, pytest.mark.slow]


def row(name, **shares):
    scores = {}
    for entry, x in shares.items():
        metrics = {"success": x, "success_low": 0.0, "success_high": 1.0}
        metrics |= {"ceiling": 1.0, "regret": 1 - x}
        scores[entry] = Score(entry, {"max_reply_tokens": 8}, "", metrics, 1.0)
    evaluation = dict.fromkeys(MEASUREMENT, 1) | {"temperature": 0.5}
    about = {"policy": name, "evaluation": evaluation, "suite": "all"}
    about |= (
        {"player": name} if name == "chance" else {"prompt": {}, "context": ["full"]}
    )
    return Row(pathlib.Path(f"{name}.json"), about, scores)


@pytest.fixture
def page(driver, tmp_path):
    rows = [
        row("Zoe", Walk=0.8, Run=1.0),
        row("<i>Bo<i>", Walk=0.95, Run=0.05),
        row("chance", Walk=0.1),
    ]
    board = Board(rows, list(map(mean_success, rows)), ["Walk", "Run"])
    path = tmp_path / "board.html"
    path.write_text(make_leaderboard_page(board), encoding="utf-8")
    driver.get_log("browser")
    driver.get(path.as_uri())
    yield driver
    assert driver.get_log("browser") == []
    assert (
        driver.execute_script("return performance.getEntriesByType('resource').length")
        == 0
    )


def names(page):
    return page.execute_script(
        "return [...document.querySelectorAll('.standings tbody th')].map("
        "(x) => x.textContent)"
    )


def click(page, column):
    page.find_element("css selector", f"[data-column='{column}'] button").click()
    head = page.find_element("css selector", "[aria-sort]")
    assert head.get_attribute("data-column") == str(column)
    return head.get_attribute("aria-sort"), names(page)


def test_a_click_sorts_and_another_turns_the_order(page):
    assert names(page) == ["Zoe", "<i>Bo<i>", "chance"]
    assert click(page, 3) == ("descending", ["<i>Bo<i>", "Zoe", "chance"])
    assert click(page, 3) == ("ascending", ["chance", "Zoe", "<i>Bo<i>"])
    # What was not played stays last.
    assert click(page, 5) == ("descending", ["Zoe", "<i>Bo<i>", "chance"])
    assert click(page, 5) == ("ascending", ["<i>Bo<i>", "Zoe", "chance"])
    assert click(page, 0) == ("ascending", ["<i>Bo<i>", "chance", "Zoe"])
    assert click(page, 1) == ("ascending", ["Zoe", "<i>Bo<i>", "chance"])


def test_light_and_dark_and_a_phone(page):
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(paper)
    page.find_element("id", "scheme").click()
    assert page.execute_script(paper) != light
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    # The table scrolls in its box, the page does not.
    width = "return document.documentElement.scrollWidth"
    assert page.execute_script(width) == 360
    page.find_element("css selector", "summary").click()
    assert page.execute_script(width) == 360
    page.execute_script("document.querySelector('.scroll').scrollLeft = 200")
    left = (
        "return document.querySelector('.standings tbody th').getBoundingClientRect().x"
    )
    assert 0 <= page.execute_script(left) < 40
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_wide_table_says_that_it_goes_on(page):
    size = {"width": 375, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    frame = "return document.querySelector('.frame').className"
    try:
        browser.wait_for(page, frame + ".includes('more-right')")
        shown = "return document.querySelector('.frame + .hint').offsetHeight"
        assert page.execute_script(shown) > 0
        # The page itself is as wide as the window.
        wide = "return document.documentElement.scrollWidth"
        assert page.execute_script(wide) <= 375
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
