"""Alarms: each indicator and regime on made-up records, and in runs."""

import dataclasses
import json
import math

import numpy as np
import pytest

from configs import bandit, base
from ragen_jax.config import changed_keys, validate
from ragen_jax.diagnostics.early_warning import (
    ENTROPY,
    INDICATORS,
    INFORMATION,
    NUM_TOKENS,
    REGIMES,
    TRAINED,
    EarlyWarning,
    lead_times,
)
from ragen_jax.train import train
from tests import commands

# A healthy iteration, and for each indicator a value outside its band on either side.
HEALTHY = {
    NUM_TOKENS: 100.0,
    TRAINED: 2.0,
    "actor/entropy": 0.6,
    "actor/grad_norm": 0.5,
    "train/A/reply_length": 10.0,
    "train/B/reply_length": 30.0,
    "train/A/format": 1.0,
    "train/B/format": 0.9,
    "rollout/distinct_3gram": 0.4,
    "rollout/top_reply_share": 0.02,
    "collapse/valid_thinking_rate": 1.0,
    "train/A/success": 0.2,
    "train/B/success": 0.4,
}
ILL = [
    ("in_group_reward_std", {TRAINED: 0.9}, "spread_low"),
    ("entropy", {"actor/entropy": 0.1}, "entropy_low"),
    ("entropy", {"actor/entropy": 1.3}, "entropy_high"),
    ("grad_norm", {"actor/grad_norm": 1.6}, "grad_norm_high"),
    (
        "reply_length",
        {"train/A/reply_length": 1.0, "train/B/reply_length": 18.0},
        "reply_length_low",
    ),
    ("reply_length", {"train/B/reply_length": 71.0}, "reply_length_high"),
    ("distinct_3gram", {"rollout/distinct_3gram": 0.19}, "distinct_low"),
    ("top_reply_share", {"rollout/top_reply_share": 0.11}, "top_reply_high"),
    ("format", {"train/A/format": 0.6, "train/B/format": 0.9}, "format_low"),
    ("valid_thinking_rate", {"collapse/valid_thinking_rate": 0.7}, "format_low"),
]


def make_warning(**changes) -> EarlyWarning:
    config = base.get_config()
    config.warning.update({"baseline_iterations": 2} | changes)
    return EarlyWarning(**config.warning)


def alarms(warning, records):
    result = []
    for i in range(len(records)):
        metrics = warning.look(records[: i + 1]).metrics
        result.append({name for name in INDICATORS if metrics.get(f"alarm/{name}")})
    return result


@pytest.mark.parametrize(("name", "change", "key"), ILL)
def test_each_indicator(name, change, key):
    """The third time in a row outside; a single time where it is a spike."""
    bad = HEALTHY | change
    records = [HEALTHY, HEALTHY, bad, bad, HEALTHY, bad, bad, bad, bad, HEALTHY]
    warning, none = make_warning(), set()
    steady = [none] * 7 + [{name}] * 2 + [none]
    spiky = [none] * 2 + [{name}] * 2 + [none] + [{name}] * 4 + [none]
    assert alarms(warning, records) == (spiky if name == "grad_norm" else steady)
    (text,) = warning.look(records[: 8 if name != "grad_norm" else 3]).news
    assert text.startswith(f"early warning: {name} alarms, {INDICATORS[name].metric}")
    assert f"(warning.{key})" in text
    # The news comes once.
    assert all(not warning.look(records[:n]).news for n in (2, 5, 9, 10))
    assert make_warning(persistence=4).look(records[:9]).metrics[f"alarm/{name}"] == 1
    wide = {"low": 1e-6, "high": 1e6}[key.rsplit("_")[-1]]
    assert alarms(make_warning(**{key: wide}), records) == [none] * 10
    # Another beginning moves the band.
    scaled = [r | {n: 0.01 * x for n, x in r.items()} for r in (HEALTHY, HEALTHY, bad)]
    assert alarms(make_warning(persistence=1), scaled)[-1] == {name}


def test_bounds_are_open_where_none():
    keys = {key for i in INDICATORS.values() for key in (i.low, i.high) if key}
    warning = make_warning(**dict.fromkeys(keys))
    assert warning.look([HEALTHY] * 5).metrics == {}
    open_above = make_warning(entropy_high=None, persistence=1)
    records = [HEALTHY] * 2 + [HEALTHY | {"actor/entropy": 9.0}]
    assert alarms(open_above, records)[-1] == set()


def test_the_first_iterations_are_not_judged():
    """They make the band, however far from their own mean one of them is."""
    low = HEALTHY | {"actor/entropy": 0.01}
    warning = make_warning(baseline_iterations=5, persistence=1)
    result = alarms(warning, [*[HEALTHY] * 4, low, HEALTHY, low])
    assert result == [set()] * 6 + [{"entropy"}]


def test_bands_are_taken_anew_once_the_form_is_learned():
    """Entropy falls with the form: no collapse. What was alarmed before stays so."""
    formless = HEALTHY | {"train/A/format": 0.2, "train/B/format": 0.3}
    settled = HEALTHY | {"actor/entropy": 0.05}
    warning = make_warning(persistence=1)
    run = [*[formless] * 3, *[settled] * 4]
    assert alarms(warning, run) == [set()] * 7
    lower = settled | {"actor/entropy": 0.009}
    assert alarms(warning, [*run, lower])[-1] == {"entropy"}
    (text,) = warning.look([*run, lower]).news
    assert "0.009 is below 0.01, 0.2 of what it was at first" in text
    # A model that never finds the form, or loses it later, is judged as any other.
    assert alarms(warning, [*[formless] * 3, formless | {"actor/entropy": 0.05}])[-1]
    lost = alarms(warning, [*run, formless | {"actor/entropy": 0.05}])
    assert lost == [set()] * 7 + [{"format"}]
    spiky = [formless] * 2 + [formless | {"actor/grad_norm": 9.0}]
    both = alarms(warning, [*spiky, *[settled] * 3])
    assert both == [set(), set(), {"grad_norm"}, set(), set(), set()]


def test_what_was_not_measured_changes_nothing():
    """An evaluation before the first iteration, an empty update, numbers that are none.

    A null on disk is not-a-number in memory, and numbers may be NumPy's.
    """
    low = HEALTHY | {"actor/entropy": 0.01}
    empty = HEALTHY | {NUM_TOKENS: 0.0, "actor/entropy": 0.0}
    before, gap = {"val-env/A/success": 0.1}, HEALTHY | {"actor/entropy": math.nan}
    records = [before, HEALTHY, empty, HEALTHY, low, gap, low, empty, low, empty]
    result = alarms(make_warning(baseline_iterations=3), records)
    assert result == [set()] * 8 + [{"entropy"}] * 2
    live = [{n: np.float32(x) for n, x in r.items()} for r in records]
    read = [
        {n: None if math.isnan(x) else float(np.float32(x)) for n, x in r.items()}
        for r in records
    ]
    looks = [make_warning(baseline_iterations=3).look(r) for r in (live, read)]
    assert looks[0] == looks[1]


def test_a_metric_that_is_seldom_measured():
    """Its baseline is what the first iterations hold, or its first number."""
    rate = "collapse/valid_thinking_rate"
    without = {n: x for n, x in HEALTHY.items() if n != rate}
    bad = without | {rate: 0.5}
    records = [without] * 4 + [HEALTHY] + [without, bad] * 3
    result = alarms(make_warning(), records)
    assert result == [set()] * 10 + [{"valid_thinking_rate"}]


REGIME_METRICS = [
    ((1.0, 0.5), (0.0, "diverse (healthy at any time)")),
    ((0.4, 0.5), (1.0, "template collapse (not healthy)")),
    ((1.0, 0.2), (2.0, "compressed (healthy late in a run that learned)")),
    ((0.4, 0.2), (3.0, "low-entropy collapse (not healthy)")),
]


def informed(information, entropy):
    return HEALTHY | {INFORMATION: information, ENTROPY: entropy}


@pytest.mark.parametrize(("last", "regime"), REGIME_METRICS)
def test_regimes(last, regime):
    first = informed(1.0, 0.5)
    records = [first, HEALTHY, HEALTHY, informed(*last) | {"actor/grad_norm": 9.0}]
    outlook = make_warning().look(records)
    assert outlook.metrics["collapse/regime"] == regime[0]
    assert outlook.news[-1].endswith(regime[1])
    # Shares of the first measurement, whatever it was; only when it was measured.
    narrow = {"information_regime_low": 0.3, "entropy_regime_low": 0.3}
    assert make_warning(**narrow).look(records).metrics["collapse/regime"] == 0
    assert "collapse/regime" not in make_warning().look(records[:3]).metrics


def test_the_run_of_make_train_is_healthy():
    """Its numbers, rounded: success goes from 27 % to 65 % of the held-out levels."""
    information = [1.41, 1.66, 1.80, 1.85, 1.88, 2.01, 2.12, 2.11, 2.04]
    entropy = [0.494, 0.273, 0.160, 0.130, 0.091, 0.116, 0.037, 0.075, 0.103]
    spread = [3.30, 4.27, 3.79, 2.92, 2.42, 2.68, 2.95, 2.19, 2.46]
    of_tokens = [0.603, 0.382, 0.377, 0.267, 0.226, 0.220, 0.204, 0.183, 0.158]
    records = [
        informed(i, e) | {TRAINED: s, "actor/entropy": t}
        for i, e, s, t in zip(information, entropy, spread, of_tokens, strict=True)
    ]
    warning = make_warning(baseline_iterations=2)
    assert alarms(warning, records) == [set()] * 9
    assert warning.look(records).metrics["collapse/regime"] == 2
    compressed = next(r for r in REGIMES.values() if r.number == 2)
    assert compressed.healthy == "late in a run that learned"


def test_no_regime_is_guessed():
    """Not from entropy alone, nor where there was no information to begin with."""
    for records in (
        [HEALTHY | {ENTROPY: 0.5}, HEALTHY | {ENTROPY: 0.1}],
        [informed(-0.01, 0.5), informed(0.0, 0.1)],
        [],
    ):
        assert "collapse/regime" not in make_warning().look(records).metrics


def collapse():
    """Spread falls at 6, entropy at 8 (alarms 8 and 10), success after 12."""
    records = []
    for i in range(1, 25):
        record = HEALTHY | {"iteration": i}
        record[TRAINED] = 2.0 if i < 6 else 0.1
        record["actor/entropy"] = 0.6 if i < 8 else 0.05
        share = 1.0 if i < 13 else 0.1
        record |= {
            n: share * HEALTHY[n] for n in ("train/A/success", "train/B/success")
        }
        records.append(record)
        record |= make_warning().look(records).metrics
    return records


def test_lead_times():
    """Mean success is 0.3; over five iterations, three of which at 0.03: 0.138."""
    result = lead_times([{"iteration": 0}, *collapse()])
    assert result.success_fell == 15
    assert result.first_alarm["in_group_reward_std"] == 8
    assert result.first_alarm["entropy"] == 10
    assert result.first_alarm["reply_length"] is None
    assert result.lead["in_group_reward_std"] == 7
    assert result.lead["reply_length"] is None
    assert result.describe().splitlines() == [
        "in_group_reward_std alarmed at iteration 8, 7 before success fell (at 15)",
        "entropy alarmed at iteration 10, 5 before success fell (at 15)",
    ]
    assert lead_times(collapse(), success_window=1).success_fell == 13
    assert lead_times(collapse(), success_low=0.9).success_fell == 13
    until = lead_times(collapse()[:12])
    assert until.success_fell is None
    assert "alarmed at iteration 8, success did not fall" in until.describe()
    chance = [
        r | {"train/A/success": 0.04 / i, "train/B/success": 0.04 / i}
        for i, r in enumerate(collapse(), 1)
    ]
    assert lead_times(chance).success_fell is None
    assert "too few iterations or successes" in lead_times(chance).describe()
    few = lead_times(collapse()[:12], success_window=12)
    assert "alarmed at iteration 8, too few iterations" in few.describe()
    assert lead_times([]).describe() == ""


def test_stops_at_the_first_alarm_that_counts():
    records = collapse()
    assert make_warning().look(records).stop_reason is None
    stopping = make_warning(action="stop")
    reasons = [stopping.look(records[:n]).stop_reason for n in (7, 8, 24)]
    assert reasons[0] is None
    assert reasons[1] == reasons[2]
    assert reasons[1].startswith("in_group_reward_std alarms, rollout/in_group_reward")
    other = make_warning(action="stop", act_on="grad_norm,entropy")
    assert other.look(records[:9]).stop_reason is None
    assert other.look(records[:10]).stop_reason.startswith("entropy alarms")


def test_cuts_once_per_alarm_with_a_pause():
    bad = HEALTHY | {"actor/grad_norm": 9.0}
    records = [HEALTHY] * 2 + [bad, bad, HEALTHY, bad, bad, HEALTHY, bad]

    def scales(**changes):
        settings = {"action": "cut_learning_rate", "cooldown_iterations": 1} | changes
        warning = make_warning(**settings)
        looks = [warning.look(records[:n]) for n in range(1, len(records) + 1)]
        return [look.learning_rate_scale for look in looks]

    assert scales() == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]
    assert scales(cooldown_iterations=4)[-1] == 0.25
    assert scales(learning_rate_factor=0.1)[2] == 0.1
    assert scales(act_on="entropy") == [1] * 9
    assert scales(action=None) == scales(action="stop") == [1] * 9


def test_refused_with_the_cure():
    def check(overrides=(), **changes):
        config = base.get_config()
        config.update_from_flattened_dict(commands.dotted(changes))
        validate(config, overrides)
        return config

    acting = {"warning__action": "cut_learning_rate"}
    with pytest.raises(ValueError, match=r"warning.act_on = 'spread'; it must be"):
        check(**acting, warning__act_on="spread")
    with pytest.raises(ValueError, match="waits for an alarm of distinct_3gram, whose"):
        check(**acting, warning__act_on="distinct_3gram", warning__distinct_low=None)
    with pytest.raises(ValueError, match=r"warning.action == 'cut_learning_rate', and"):
        check(["warning.cooldown_iterations"], warning__action="stop")
    unread = {"warning__action": "stop", "warning__act_on": "valid_thinking_rate"}
    check(**unread)
    for changes in ({"diagnostics__every": None}, {"prompt__thinking": False}):
        with pytest.raises(
            ValueError, match="can never trigger: valid_thinking_rate is"
        ):
            check(**unread, **changes)
    with pytest.raises(ValueError, match=r"baseline_iterations = 40, and train.num"):
        check(warning__action="stop", warning__baseline_iterations=40)
    with pytest.raises(ValueError, match=r"regime_low has no effect here: .*thinking"):
        check(["warning.entropy_regime_low"], prompt__thinking=False)
    with pytest.raises(ValueError, match=r"act_on has no effect here: .*action = None"):
        check(["warning.act_on"])
    with pytest.raises(ValueError, match=r"entropy_high = 0.5; it must be above 1"):
        check(warning__entropy_high=0.5)
    # A resumed run may look at its record in another way, unless that changes it.
    assert not changed_keys(check(), check(warning__entropy_low=0.3))
    assert not changed_keys(check(), check(warning__action="stop"))
    assert changed_keys(check(), check(**acting)) == {
        "warning.action": (None, "cut_learning_rate")
    }


def test_every_setting_is_a_key():
    names = {field.name for field in dataclasses.fields(EarlyWarning)}
    assert names == set(base.get_config().warning)


# Of replies cut at 24 tokens some are shorter: an alarm where more are than at first.
NERVOUS = {
    "evaluation__every": None,
    "rollout__max_reply_tokens": 24,
    "logging__trajectories_every": 1,
    "warning__baseline_iterations": 1,
    "warning__persistence": 1,
    "warning__reply_length_low": 0.999,
    "warning__act_on": "reply_length",
    "warning__action": "cut_learning_rate",
    "warning__cooldown_iterations": 1,
    "checkpoint__every": 1,
    "train__num_iterations": 6,
}


def run(model, workdir, capsys, **changes):
    config = commands.tiny_config(bandit, model, **NERVOUS | changes)
    assert train(config, workdir) == 0
    output = capsys.readouterr().out
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return output, [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_run_that_is_cut_resumes_to_the_same_bits(model, tmp_path, capsys):
    output, records = run(model, tmp_path / "whole", capsys)
    scale, was = 1.0, 0.0
    for record in records:
        assert record["actor/lr"] == np.float32(2e-4) * np.float32(scale)
        scale *= 0.5 if record["alarm/reply_length"] > was else 1.0
        was = record["alarm/reply_length"]
    assert scale < 1
    first = next(r["iteration"] for r in records if r["alarm/reply_length"])
    assert output.count("early warning: reply_length alarms") == 1
    assert f"reply_length alarmed at iteration {first}, too few" in output
    digests = {output.split("sha256 ")[1].split()[0]}
    run(model, tmp_path / "parts", capsys, train__num_iterations=first)
    resumed, _ = run(model, tmp_path / "parts", capsys)
    assert "early warning: reply_length" not in resumed
    digests.add(resumed.split("sha256 ")[1].split()[0])
    assert len(digests) == 1
    paths = tmp_path / "whole", tmp_path / "parts"
    assert commands.record_of(paths[0]) == commands.record_of(paths[1])


@pytest.mark.slow
def test_a_run_that_is_stopped_stays_stopped(model, tmp_path, capsys):
    changes = {"warning__action": "stop"}
    for _ in range(2):
        output, records = run(model, tmp_path / "run", capsys, **changes)
        last = records[-1]["iteration"]
        assert [r["alarm/reply_length"] for r in records] == [0.0] * (last - 1) + [1.0]
        assert f"stopped early after iteration {last}: reply_length alarms" in output
    changes["warning__action"] = None
    _, records = run(model, tmp_path / "run", capsys, **changes)
    assert records[-1]["iteration"] == 6
