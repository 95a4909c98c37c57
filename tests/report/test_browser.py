"""The report in a real browser, opened from disk: it draws, filters and steps."""

import re

import pytest

from tests.report import browser, fake_runs, malformed

pytestmark = [pytest.mark.live, pytest.mark.slow]

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
    browser.choose(page, "band", "error")
    assert page.execute_script(bands) != before


def test_filters(page):
    shown, total, wins = browser.counts(page)
    assert shown == total == browser.MAX_EPISODES
    assert 0 < wins < total
    browser.choose(page, "f-outcome", "success")
    assert browser.counts(page) == [wins, total, wins]
    browser.choose(page, "f-iteration", "40")
    at_end = browser.counts(page)[0]
    assert 0 < at_end < wins
    page.execute_script("document.querySelector('#episodes form').reset()")
    browser.wait_for(
        page,
        f"return document.getElementById('count').textContent.startsWith('{total} ')",
    )
    browser.choose(page, "f-low", "5")
    assert browser.counts(page)[0] == wins
    browser.choose(page, "f-low", "-100")
    browser.choose(page, "f-high", "5")
    assert browser.counts(page) == [total - wins, total, 0]
    browser.choose(page, "f-high", "100")
    browser.choose(page, "f-text", "WINDOW.HACKED")
    hostile = browser.counts(page)[0]
    browser.choose(page, "f-text", "P32")
    assert browser.counts(page)[0] == total - hostile
    browser.choose(page, "f-format", "")
    assert browser.counts(page)[0] == 0
    assert "No episode" in page.execute_script(
        "return document.getElementById('episode').textContent"
    )
    browser.choose(page, "f-text", " ")
    assert browser.counts(page)[0] == hostile
    browser.choose(page, "f-run", "1")
    assert 0 < browser.counts(page)[0] < hostile


def test_every_cell_is_a_drawing_that_fills_it(page):
    shown = page.execute_script(
        "const board = document.querySelector('#board').getBoundingClientRect();"
        "const cells = [...document.querySelectorAll('#board image')];"
        "const area = (box) => box.width * box.height;"
        "const filled = cells.map((x) => area(x.getBoundingClientRect()));"
        "return [cells.length, filled.reduce((a, b) => a + b) / area(board)]"
    )
    sizes = page.execute_async_script(
        "const done = arguments[0];"
        "const load = async (x) => {"
        "  const image = new Image();"
        "  image.src = x.getAttribute('href');"
        "  await image.decode();"
        "  return image.naturalWidth;"
        "};"
        "const cells = document.querySelectorAll('#board image');"
        "Promise.all([...cells].map(load)).then(done)"
    )
    num_cells, share = shown
    assert num_cells == len(sizes) > 1
    assert abs(share - 1) < 0.01
    assert set(sizes) == {64}


def test_symbols_beyond_the_drawings_are_written(page):
    width = page.execute_script(
        "const svg = document.querySelector('#board');"
        "svg.append(drawCell('no such meaning', 'abc', 0, 0));"
        "const word = svg.querySelector('.glyph').getBoundingClientRect();"
        "return word.width / svg.querySelector('image').getBoundingClientRect().width"
    )
    assert 0.1 < width < 1


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nfirst<|im_end|>\n<|im_start|>user\nsecond<|im_end|>\nthird",
        "<|start_header_id|>user<|end_header_id|>\n\nfirst<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nsecond<|eot_id|>third",
        "second",
    ],
)
def test_a_state_is_the_last_message_of_any_markup(page, text):
    assert page.execute_script("return lastMessage(arguments[0])", text) == "second"


def test_stepping_through_an_episode(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.choose(page, "f-outcome", "failure")
    browser.choose(page, "f-text", "P32")
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
    browser.choose(page, "f-format", "")
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
    assert browser.wait_for(page, fits)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_older_run_says_what_it_lacks(driver, tmp_path):
    run = fake_runs.write_run(
        tmp_path / "old", diagnostics=False, tokens=False, iterations=3
    )
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=5))
    notes = driver.execute_script(
        "return [...document.querySelectorAll('.note')].map((n) => n.textContent)"
    )
    # Plane, alarms, buckets, and the KL to a reference that it does not have.
    assert sum("Not drawn" in note for note in notes) == 4
    assert any("no single tokens" in note for note in notes)
    text = "return document.getElementById('episodes').textContent"
    shown = driver.execute_script(text)
    assert re.findall("advantage|by the filter|Group", shown) == []
    assert driver.get_log("browser") == []


def test_a_run_without_episodes(driver, tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=1)
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=0))
    note = "return document.querySelector('#episodes .note').textContent"
    assert "No episodes" in driver.execute_script(note)
    assert driver.get_log("browser") == []


def test_malformed_records_stop_nothing(driver, tmp_path):
    run = malformed.write_run(tmp_path / "run", iterations=3)
    path = browser.write_page(tmp_path, [run], max_episodes=1_000)
    assert path.stat().st_size < 2e6
    browser.open_page(driver, path)
    assert browser.counts(driver)[:2] == [13, 13]
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
    for _ in range(browser.counts(driver)[0]):
        driver.execute_script(
            "const e = VIEW.shown[VIEW.episode];"
            "e.turns.forEach((_, k) => showTurn(k));"
            "openEpisode(VIEW.episode + 1)"
        )
    browser.choose(driver, "metric", "actor/entropy")
    broken = (
        "return [...document.querySelectorAll('figure [points], figure [cx]')].filter("
        "(n) => /NaN|undefined|Infinity/.test(n.outerHTML)).length"
    )
    assert driver.execute_script(broken) == 0
    assert driver.get_log("browser") == []
