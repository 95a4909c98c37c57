"""What a researcher reads off the figures: legends, colours, axes, credit."""

import json

import pytest

from tests.report import browser

pytestmark = [pytest.mark.live, pytest.mark.slow]


def legends(page):
    return page.execute_script(
        "return [...document.querySelectorAll('figure')].map((f) => ["
        "f.querySelector('h3').textContent,"
        "[...f.querySelectorAll('figcaption .entry')].map((e) => e.textContent)])"
    )


def test_every_figure_has_a_legend_of_what_it_shows(page):
    names = page.execute_script("return DATA.series.map((s) => s.name)")
    for title, entries in legends(page):
        assert set(names) & set(entries), title
    own = dict(legends(page))
    assert own["Sokoban: return"] == names
    lines = ["training", "held-out", "solver"]
    assert own["Sokoban: success"] == names + lines
    assert {"task", "entropy", "kl"} <= set(own["Gradient norms"])
    assert "a run's first alarm" in own["Alarms over iterations"]
    page.execute_script("HIDDEN.add(0); redraw()")
    assert dict(legends(page))["Sokoban: return"] == names[1:]


def test_a_series_has_one_colour_everywhere(page):
    """Every line of a figure over iterations, planes and alarms is in its colour."""
    page.execute_script("HIDDEN.add(0); redraw()")
    strokes = page.execute_script(
        "return [...document.querySelectorAll('#progress, #plane, #update, #timing')]"
        ".flatMap((s) => [...s.querySelectorAll('figure polyline, figcaption line')])"
        ".map((l) => l.getAttribute('stroke'))"
    )
    assert set(strokes) == {"var(--s1)", "var(--muted)", "currentColor"}
    for section in ("alarms", "buckets"):
        for i in range(2):
            used = page.execute_script(
                "return [...document.querySelectorAll(`#${arguments[0]} figure`)]"
                ".filter((f) => f.querySelector('.entry').textContent"
                " === DATA.series[arguments[1]].name)"
                ".map((f) => f.innerHTML.match(/var\\(--s\\d/g))",
                section,
                i,
            )
            assert used
            assert {color for figure in used for color in figure} == {f"var(--s{i}"}


LINE = (
    "return [...document.querySelectorAll('figure')].find((f) =>"
    " f.querySelector('h3').textContent === arguments[0])"
)
POINTS = (
    LINE + ".querySelector('polyline:not([opacity=\"0.3\"])').getAttribute('points')"
)
TEXT = LINE + ".querySelector('svg[role=img]').textContent"


def ys(points):
    return [float(point.split(",")[1]) for point in points.split()]


def test_smoothing_by_keyboard_keeps_what_was_recorded(page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    rough = ys(page.execute_script(POINTS, "Clipped tokens"))
    page.find_element(By.ID, "smoothing").send_keys(Keys.END)
    smooth = ys(page.execute_script(POINTS, "Clipped tokens"))
    assert len(smooth) == len(rough)
    steps = [
        sum(abs(a - b) for a, b in zip(y[1:], y, strict=False)) for y in (rough, smooth)
    ]
    assert steps[1] < 0.5 * steps[0]
    # By hand: the mean weighted by 0.95 to the power of the age.
    found = page.execute_script("return average([1, 2, 4])")
    weights = [0.95**2, 0.95, 1]
    expected = sum(w * x for w, x in zip(weights, (1, 2, 4), strict=True))
    assert found[2] == pytest.approx(expected / sum(weights))
    figure = page.find_element(By.XPATH, "//figure[.//h3[.='Clipped tokens']]")
    figure.find_element(By.CSS_SELECTOR, "svg[role=img]").send_keys(Keys.ARROW_LEFT)
    assert "recorded" in figure.find_element(By.CSS_SELECTOR, ".tip").text
    page.find_element(By.ID, "smoothing").send_keys(Keys.HOME)
    assert ys(page.execute_script(POINTS, "Clipped tokens")) == rough


def test_log_axes_where_all_values_are_positive(page):
    page.execute_script("document.getElementById('log').focus()")
    page.switch_to.active_element.send_keys(" ")
    assert "log axis" in page.execute_script(TEXT, "Entropy of the sampled tokens")
    assert "linear: not all above 0" in page.execute_script(TEXT, "Sokoban: return")
    # The controls stay in sight, and as they were set, wherever one scrolls.
    page.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    top = "return document.getElementById('log').getBoundingClientRect().top"
    assert browser.wait_for(page, "return window.scrollY > 1000")
    assert 0 <= page.execute_script(top) < 200
    assert page.execute_script("return document.getElementById('log').checked")
    for low, high in ((1e-9, 1e9), (0.02, 0.5), (3, 4)):
        ticks = page.execute_script("return logTicks(...arguments)", low, high)
        assert 2 <= len(ticks) <= 8
        assert all(low <= tick <= high for tick in ticks)


def test_throughput_begins_after_the_first_iteration(page):
    first = LINE + ".querySelector('details').open = true"
    page.execute_script(first, "Rollout")
    rows = LINE + ".querySelectorAll('tbody tr th')[0].textContent"
    assert browser.wait_for(page, rows.replace("arguments[0]", "'Rollout'")) == "2"


def test_the_filter_the_group_and_the_advantage_of_an_episode(page):
    from selenium.webdriver.common.by import By

    total = browser.counts(page)[0]
    browser.choose(page, "f-kept", "false")
    dropped = browser.counts(page)[0]
    assert 0 < dropped < total
    head = page.find_element(By.CSS_SELECTOR, "#episode .row").text
    assert "dropped by the filter" in head
    assert "group 1" in head
    token = page.find_element(By.CSS_SELECTOR, "#tokens .token")
    assert "dropped, not in the loss" in token.get_attribute("title")
    edged = "return document.querySelectorAll('.stepper .gain, .stepper .loss').length"
    assert page.execute_script(edged) == 0
    browser.choose(page, "f-kept", "true")
    assert browser.counts(page)[0] == total - dropped
    browser.choose(page, "f-group", "1")
    assert browser.counts(page)[0] == 0
    browser.choose(page, "f-group", "0")
    browser.choose(page, "f-outcome", "success")
    facts = page.find_element(By.CSS_SELECTOR, "#episode .facts").text
    assert "advantage +1.25" in facts
    assert page.execute_script(edged) > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(page, scheme):
    """WCAG's 4.5 to 1 for text, 3 to 1 for lines, against the page."""
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.wait_for(
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
