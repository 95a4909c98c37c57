"""The report in a real browser, opened from disk: it draws, filters and steps."""

import json
import re

import pytest

from ragen_jax.report.contents import make_contents
from ragen_jax.report.page import make_page
from ragen_jax.report.runs import read_runs
from ragen_jax.report.series import make_series
from tests.report import browser, fake_runs, malformed

pytestmark = [pytest.mark.live, pytest.mark.slow]

MAX_EPISODES = 120
SECTIONS = [
    "summary",
    "progress",
    "plane",
    "indicators",
    "alarms",
    "buckets",
    "update",
    "timing",
    "explore",
    "episodes",
    "settings",
]


def write_page(folder, runs, **options):
    found = read_runs(runs)
    contents = make_contents(found, make_series(found), **options)
    path = folder / "report.html"
    path.write_text(make_page(contents), encoding="utf-8")
    return path


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
    return write_page(folder, runs, max_episodes=MAX_EPISODES)


@pytest.fixture
def page(driver, full):
    """The full report, freshly opened; its console must stay silent."""
    open_page(driver, full)
    yield driver
    assert driver.get_log("browser") == []


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
    """Episodes shown, all, successes, as the line above the list says."""
    text = driver.execute_script("return document.getElementById('count').textContent")
    return [int(number) for number in re.findall(r"\d+", text)][:3]


def turn(driver):
    return driver.execute_script("return document.getElementById('t-now').textContent")


def test_every_section_is_drawn(page):
    ids = page.execute_script(
        "return [...document.querySelectorAll('main > section')].map((s) => s.id)"
    )
    assert ids == SECTIONS
    titles = page.execute_script(
        "return [...document.querySelectorAll('figure h3')].map((h) => h.textContent)"
    )
    assert {"Sokoban: success", "Paths of the runs", "Alarms over iterations"} <= set(
        titles
    )
    assert page.execute_script("return document.querySelectorAll('.note').length") == 0
    # Every figure has lines or marks, an alternative text, and takes the keyboard.
    bare = page.execute_script(
        "return [...document.querySelectorAll('figure svg[role=img]')].filter((s) =>"
        " !s.querySelector('polyline, polygon, circle, rect')"
        " || s.getAttribute('aria-label').length < 20 || s.tabIndex !== 0).length"
    )
    assert bare == 0
    numbers = page.execute_script(
        "return [...document.querySelectorAll('figure [points], figure [cx]')].filter("
        "(n) => /NaN|undefined|Infinity/.test(n.outerHTML)).length"
    )
    assert numbers == 0


def test_figures_tell_values_to_the_keyboard(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    for title, words in (
        ("Sokoban: success", ("iteration 40", "keep_fraction=0.25", "%")),
        ("Paths of the runs", ("H(Z|X)", "iteration 40", "diverse")),
        ("Gradient norms", ("bucket 4", "entropy")),
        (
            "Alarms over iterations",
            ("iteration 40", "vanilla-1", "low-entropy collapse"),
        ),
    ):
        figure = page.find_element(By.XPATH, f"//figure[.//h3[.='{title}']]")
        figure.find_element(By.CSS_SELECTOR, "svg[role=img]").send_keys(Keys.ARROW_LEFT)
        tip = figure.find_element(By.CSS_SELECTOR, ".tip")
        assert all(word in tip.text for word in words), (title, tip.text)


def test_switching_a_series_off_redraws(page):
    from selenium.webdriver.common.by import By

    lines = (
        "return document.querySelector('#progress figure')"
        ".querySelectorAll('polyline').length"
    )
    before = page.execute_script(lines)
    page.find_element(By.CSS_SELECTOR, ".legend input").click()
    assert page.execute_script(lines) < before
    bands = "return document.querySelector('#progress polygon').outerHTML"
    before = page.execute_script(bands)
    choose(page, "band", "error")
    assert page.execute_script(bands) != before


def test_filters(page):
    shown, total, wins = counts(page)
    assert shown == total == MAX_EPISODES
    assert 0 < wins < total
    choose(page, "f-outcome", "success")
    assert counts(page) == [wins, total, wins]
    choose(page, "f-iteration", "40")
    at_end = counts(page)[0]
    assert 0 < at_end < wins
    page.execute_script("document.querySelector('#episodes form').reset()")
    wait_for(
        page,
        f"return document.getElementById('count').textContent.startsWith('{total} ')",
    )
    choose(page, "f-low", "5")
    assert counts(page)[0] == wins
    choose(page, "f-low", "-100")
    choose(page, "f-high", "5")
    assert counts(page) == [total - wins, total, 0]
    choose(page, "f-high", "100")
    choose(page, "f-text", "WINDOW.HACKED")
    hostile = counts(page)[0]
    choose(page, "f-text", "P32")
    assert counts(page)[0] == total - hostile
    choose(page, "f-format", "")
    assert counts(page)[0] == 0
    assert "No episode" in page.execute_script(
        "return document.getElementById('episode').textContent"
    )
    choose(page, "f-text", " ")
    assert counts(page)[0] == hostile
    choose(page, "f-run", "1")
    assert 0 < counts(page)[0] < hostile


def test_stepping_through_an_episode(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    choose(page, "f-outcome", "failure")
    choose(page, "f-text", "P32")
    assert turn(page) == "turn 1 of 3"
    before = page.find_element(By.ID, "board").get_attribute("aria-label")
    assert "target" in before
    # Action by action inside the turn, up to the board that the next one begins with.
    page.find_element(By.ID, "a-2").click()
    after = page.find_element(By.ID, "board").get_attribute("aria-label")
    assert after.startswith("Board after action 2 of turn 1: ")
    page.find_element(By.ID, "t-next").click()
    assert turn(page) == "turn 2 of 3"
    begins = page.find_element(By.ID, "board").get_attribute("aria-label")
    assert begins.split(": ")[1] == after.split(": ")[1] != before.split(": ")[1]
    box = page.find_element(By.ID, "episode")
    box.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert turn(page) == "turn 3 of 3"
    assert not page.find_element(By.ID, "t-next").is_enabled()
    box.send_keys(Keys.ARROW_LEFT)
    assert turn(page) == "turn 2 of 3"
    box.send_keys(Keys.ARROW_DOWN)
    assert turn(page) == "turn 1 of 3"
    current = page.find_elements(By.CSS_SELECTOR, "#list button")
    assert [b.get_attribute("aria-current") for b in current[:3]] == [
        None,
        "true",
        None,
    ]
    assert page.find_element(By.ID, "thought").text == "P32X22O12"
    chips = page.find_elements(By.CSS_SELECTOR, "#answer .chip")
    assert [chip.text for chip in chips] == ["Left", "Up"]
    tokens = page.find_elements(By.CSS_SELECTOR, "#tokens .token")
    assert tokens[0].text == "P32"
    assert "in the loss" in tokens[0].get_attribute("title")
    context = page.find_element(By.CSS_SELECTOR, "#tokens .context").text
    assert context.endswith("<think>")


def test_what_models_write_is_never_markup(page):
    choose(page, "f-format", "")
    for _ in range(3):
        page.execute_script("showTurn(VIEW.turn + 1)")
    text = page.execute_script("return document.getElementById('tokens').textContent")
    assert "<img src=x onerror='window.hacked = 2'>" in text
    assert "◌√" in text
    assert page.execute_script("return window.hacked") is None
    assert page.execute_script("return document.images.length") == 0
    scripts = "return document.scripts.length"
    assert page.execute_script(scripts) == 3


def test_nothing_is_fetched(page):
    kinds = page.execute_script(
        "return performance.getEntriesByType('resource').map((r) => r.name)"
    )
    assert [name for name in kinds if not name.startswith("data:")] == []


@pytest.mark.parametrize("width", [360, 1280, 1900])
def test_nothing_is_wider_than_the_window(page, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    fits = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert wait_for(page, fits)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(page, scheme):
    """WCAG's 4.5 to 1 for text, 3 to 1 for lines, against the page."""
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    wait_for(
        page,
        "return document.documentElement.classList.contains('dark') === "
        + json.dumps(scheme == "dark"),
    )
    names = ["--paper", "--ink", "--muted", "--accent", "--good", "--bad"]
    names += [f"--s{i}" for i in range(6)]
    found = page.execute_script(
        "const s = getComputedStyle(document.documentElement);"
        "return arguments[0].map((n) => s.getPropertyValue(n).trim())",
        names,
    )
    paper, *others = map(luminance, found)
    for name, value in zip(names[1:], others, strict=True):
        high, low = max(paper, value), min(paper, value)
        needed = 3 if name.startswith("--s") else 4.5
        assert (high + 0.05) / (low + 0.05) >= needed, name


def luminance(color):
    """Relative luminance of "#rrggbb" (WCAG 2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts
    ]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_an_older_run_says_what_it_lacks(driver, tmp_path):
    run = fake_runs.write_run(
        tmp_path / "old", diagnostics=False, tokens=False, iterations=3
    )
    open_page(driver, write_page(tmp_path, [run], max_episodes=5))
    notes = driver.execute_script(
        "return [...document.querySelectorAll('.note')].map((n) => n.textContent)"
    )
    assert sum("Not drawn" in note for note in notes) == 3  # plane, alarms, buckets
    assert any("no single tokens" in note for note in notes)
    assert driver.get_log("browser") == []


def test_a_run_without_episodes(driver, tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=1)
    open_page(driver, write_page(tmp_path, [run], max_episodes=0))
    note = "return document.querySelector('#episodes .note').textContent"
    assert "No episodes" in driver.execute_script(note)
    assert driver.get_log("browser") == []


def test_malformed_records_stop_nothing(driver, tmp_path):
    run = malformed.write_run(tmp_path / "run", iterations=3)
    path = write_page(tmp_path, [run], max_episodes=1_000)
    assert path.stat().st_size < 2e6
    open_page(driver, path)
    assert counts(driver)[:2] == [13, 13]
    note = driver.execute_script(
        "return document.getElementById('skipped').textContent"
    )
    assert note.startswith("46 malformed episode records left out: ")
    assert "a turn is not a JSON object (1)" in note
    ids = "return [...document.querySelectorAll('main > section')].map((s) => s.id)"
    assert driver.execute_script(ids) == SECTIONS
    figures = "return document.querySelectorAll('figure svg[viewBox]').length"
    assert driver.execute_script(figures) > 10
    # Every episode opens, every turn of it.
    for _ in range(counts(driver)[0]):
        driver.execute_script(
            "const e = VIEW.shown[VIEW.episode];"
            "e.turns.forEach((_, k) => showTurn(k));"
            "openEpisode(VIEW.episode + 1)"
        )
    choose(driver, "metric", "actor/entropy")
    broken = (
        "return [...document.querySelectorAll('figure [points], figure [cx]')].filter("
        "(n) => /NaN|undefined|Infinity/.test(n.outerHTML)).length"
    )
    assert driver.execute_script(broken) == 0
    assert driver.get_log("browser") == []
