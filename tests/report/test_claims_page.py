"""What the page says of runs holds for these runs: the text, as a reader sees it."""

import json
import re

import pytest

from tests.report import browser, fake_runs
from tests.report.test_claims import change_records

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A run under way: 13 of 40 iterations, without KL."""
    folder = tmp_path_factory.mktemp("single")
    run = fake_runs.write_run(folder / "the-run", iterations=13, planned=40)
    return browser.write_page(folder, [run], max_episodes=20)


def text(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])]"
        ".map((n) => n.textContent).join(' | ')",
        selector,
    )


def resize(driver, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.wait_for(driver, f"return window.innerWidth === {width}")


@pytest.fixture
def restored(driver):
    yield driver
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_run_under_way(driver, single):
    browser.open_page(driver, single)
    assert "1 run, 13 of 40 iterations" in text(driver, "#top")
    card = text(driver, ".card")
    assert "held-out success after iteration 10" in card
    assert "points since the start" in card
    assert "13 of 40" in text(driver, "#summary td")
    page = text(driver, "body > :not(script)")
    assert (
        re.findall("at the end|differ in their seed|over the seeds|several", page) == []
    )
    assert "Not drawn: KL to the reference" in text(driver, "#update .note")
    assert "KL to the reference" not in text(driver, "figure h3")
    assert "Path of the run" in text(driver, "figure h3")


def test_a_single_run_is_named_by_the_page_not_by_its_figures(driver, single):
    browser.open_page(driver, single)
    assert "the-run" not in text(driver, "figure .legend")
    assert text(driver, "#progress figure:first-child .entry") == (
        "training | held-out | solver"
    )
    # Lines of the legend have the colour of the lines that they explain.
    strokes = driver.execute_script(
        "return [...document.querySelectorAll("
        "'#progress figure:first-child .key line')]"
        ".map((n) => n.getAttribute('stroke'))"
    )
    assert strokes == ["var(--s0)", "var(--s0)", "currentColor"]


@pytest.mark.parametrize("width", [360, 375, 400])
def test_a_table_that_goes_on_says_so(driver, restored, single, width):
    from selenium.webdriver.common.keys import Keys

    resize(driver, width)
    browser.open_page(driver, single)
    for section in ("summary", "settings"):
        frame = f"document.querySelector('#{section} .frame')"
        browser.wait_for(driver, f"return {frame}.classList.contains('more-right')")
        edge = f"return getComputedStyle({frame}, '::after').opacity"
        hint = f"return getComputedStyle({frame}.nextSibling).display"
        assert driver.execute_script(edge) == "1"
        assert driver.execute_script(hint) == "block"
        box = driver.find_element("css selector", f"#{section} .frame > .scroll")
        assert box.get_attribute("tabindex") == "0"
        for _ in range(30):
            box.send_keys(Keys.ARROW_RIGHT)
        browser.wait_for(driver, f"return !{frame}.classList.contains('more-right')")
        assert driver.execute_script(f"return {frame}.className") == "frame more-left"
    # So do the links to the sections.
    assert "more-right" in driver.execute_script(
        "return document.querySelector('#nav .frame').className"
    )


def test_a_table_that_fits_has_no_hint(driver, restored, single):
    resize(driver, 1280)
    browser.open_page(driver, single)
    shown = (
        "return [...document.querySelectorAll('.hint')].filter((h) => h.offsetHeight)"
    )
    assert driver.execute_script(shown) == []


OVERLAPS = """
const near = 1;
return [...document.querySelectorAll('figure svg[role=img]')].flatMap((root) => {
  const texts = [...root.querySelectorAll('text')].map((t) => [t.textContent,
    t.getBoundingClientRect()]);
  const title = root.closest('figure').querySelector('h3').textContent;
  return texts.flatMap(([a, x], i) => texts.slice(i + 1)
    .filter(([, y]) => Math.min(x.right, y.right) - Math.max(x.left, y.left) > near
      && Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top) > 3)
    .map(([b]) => [title, a, b]));
});
"""


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_no_text_of_a_figure_covers_another(driver, restored, full, single, width):
    resize(driver, width)
    for path in (full, single):
        browser.open_page(driver, path)
        assert driver.execute_script(OVERLAPS) == []


def test_every_axis_has_a_scale(driver, restored, tmp_path):
    """Two numbers at least, also of a short run on a phone."""
    resize(driver, 375)
    run = fake_runs.write_run(tmp_path / "run", iterations=8)
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=0))
    few = driver.execute_script(
        "return [...document.querySelectorAll("
        "'#indicators svg[role=img], #update svg[role=img]')].map((s) =>"
        " [...s.querySelectorAll('text[text-anchor=middle]')].map((t) =>"
        " t.textContent)).filter((ticks) => ticks.length < 2)"
    )
    assert few == []


def test_one_iteration_is_seen(driver, tmp_path):
    """Points without a line have a mark, and the axis has its number."""
    run = fake_runs.write_run(tmp_path / "run", iterations=1)
    change_records(
        run,
        lambda record: (
            {k: v for k, v in record.items() if not k.startswith("val-env")}
            if record["iteration"]
            else None
        ),
    )
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=5))
    empty = driver.execute_script(
        "return [...document.querySelectorAll('#progress figure, #indicators figure')]"
        ".filter((f) => !f.querySelector('svg[role=img] :is(circle, polygon)')"
        " || ![...f.querySelectorAll('svg[role=img] text')].some("
        "(t) => t.textContent === '1')).map((f) => f.querySelector('h3').textContent)"
    )
    assert empty == []
    (alt,) = driver.execute_script(
        "return [...document.querySelectorAll('#progress svg[role=img]')].map("
        "(s) => s.getAttribute('aria-label')).filter((x) => /success/.test(x))"
    )
    assert "training: " in alt
    assert "1 run, 1 iteration" in text(driver, "#top")
    assert "training success after iteration 1" in text(driver, ".card")
    assert "too few iterations or successes to judge" in text(driver, "#alarms svg")
    assert "success did not fall" not in text(driver, "#alarms svg")
    assert driver.get_log("browser") == []


def test_a_series_is_judged_by_its_runs_that_can_be(driver, tmp_path):
    """A short run beside a long one says nothing of the long one."""
    runs = [
        fake_runs.write_run(tmp_path / "a", iterations=3, planned=40),
        fake_runs.write_run(tmp_path / "b", seed=1, iterations=40),
    ]
    browser.open_page(driver, browser.write_page(tmp_path, runs, max_episodes=0))
    shown = text(driver, "#alarms svg text")
    assert "success did not fall (1 of 2 runs judged)" in shown
    assert "too few iterations" not in shown


def test_runs_with_one_seed(driver, tmp_path):
    runs = [fake_runs.write_run(tmp_path / name, iterations=3) for name in "ab"]
    browser.open_page(driver, browser.write_page(tmp_path, runs, max_episodes=0))
    assert "the same seed and settings" in text(driver, "#settings .note")
    assert "differ in their seed" not in text(driver, "#settings")


def test_runs_of_which_one_ended_early(driver, tmp_path):
    runs = [
        fake_runs.write_run(tmp_path / "0", seed=0, iterations=20),
        fake_runs.write_run(tmp_path / "1", seed=1, iterations=10, planned=20),
    ]
    browser.open_page(driver, browser.write_page(tmp_path, runs, max_episodes=0))
    assert "2 runs, 1 with fewer iterations than planned" in text(driver, "#top")
    assert "after iteration 20 (1 of 2 runs)" in text(driver, ".card")
    assert "10 to 20" in text(driver, "#summary td")


def test_parts_of_the_loss_that_are_off_are_no_entries(driver, tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=5)
    off = re.compile(r"grad_norm/.*/kl")
    change_records(run, lambda r: {k: 0.0 if off.match(k) else v for k, v in r.items()})
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=0))
    assert text(driver, "#buckets figure:first-child .entry") == "task | entropy"


def test_a_plane_without_regimes_says_why(driver, tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=10)
    name = fake_runs.FIRST_TURN + "mi_estimate"
    change_records(run, lambda r: r | {name: r[name] - 2} if name in r else r)
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=0))
    assert "No regimes are named" in text(driver, "#plane .note")


def test_any_metric_in_its_unit(driver, single):
    browser.open_page(driver, single)
    browser.choose(driver, "metric", "train/Sokoban/success")
    assert "share of the episodes that reach the goal" in text(driver, "#meaning")
    assert " %" in text(driver, "#explore svg[role=img] text")


def test_an_answer_of_a_host_game_is_one_action(driver, tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=1)
    (path,) = (run / "trajectories").iterdir()
    episode = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    code = "if a || b:\n    print(1)"
    for turn in episode["turns"]:
        del turn["board"], turn["boards_after"], turn["token_texts"]
        del turn["token_log_probs"]
        turn |= {
            "reply": f"</think><answer>{code}</answer>",
            "listed": 1,
            "actions": [0],
        }
    path.write_text(json.dumps(episode) + "\n", encoding="utf-8")
    browser.open_page(driver, browser.write_page(tmp_path, [run], max_episodes=5))
    (chip,) = driver.find_elements("css selector", "#answer .chip")
    assert chip.text == code
