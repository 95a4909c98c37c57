"""The leaderboard in a real browser, opened from disk."""

import pytest

from ragen_jax.report.leaderboard_page import Cell, PageRow, make_leaderboard_page

pytestmark = [pytest.mark.live, pytest.mark.slow]


def page_row(name, rank, share, **scores):
    cells = {e: Cell(f"{x:.1%}", "0.0% to 100.0%", x) for e, x in scores.items()}
    regret = {e: Cell(f"{1 - x:.1%}", value=1 - x) for e, x in scores.items()}
    mean = Cell(f"{share:.1%}", "0.0% to 100.0%", share)
    return PageRow(name, rank, mean, cells, regret, [("policy", name)], ["python -m x"])


@pytest.fixture
def page(driver, tmp_path):
    rows = [
        page_row("Zoe", 1, 0.9, Walk=0.8, Run=1.0),
        page_row("<i>Bo</i>", 2, 0.5, Walk=0.95, Run=0.05),
        page_row("chance", None, 0.1, Walk=0.1),
    ]
    best = {"Walk": "100.0%", "Run": "unknown"}
    path = tmp_path / "board.html"
    path.write_text(make_leaderboard_page("What it is.", best, rows), encoding="utf-8")
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
    assert names(page) == ["Zoe", "<i>Bo</i>", "chance"]
    assert click(page, 3) == ("descending", ["<i>Bo</i>", "Zoe", "chance"])
    assert click(page, 3) == ("ascending", ["chance", "Zoe", "<i>Bo</i>"])
    # What was not played stays last.
    assert click(page, 5) == ("descending", ["Zoe", "<i>Bo</i>", "chance"])
    assert click(page, 5) == ("ascending", ["<i>Bo</i>", "Zoe", "chance"])
    assert click(page, 0) == ("ascending", ["<i>Bo</i>", "chance", "Zoe"])
    assert click(page, 1) == ("ascending", ["Zoe", "<i>Bo</i>", "chance"])


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
