"""A run judges its metrics: what overflows is named, what is lost ends it unsaved."""

import jax
import jax.numpy as jnp
import pytest

from configs import base
from ragen_jax.runs.run import SAMPLER_DIFFERENCE, Run
from tests.runs.test_checkpoint import IDENTITY, tiny_state

HEALTHY = {
    "actor/consecutive_skipped": 0.0,
    SAMPLER_DIFFERENCE: 0.0,
    "train/Sokoban/success": 0.5,
    "train/Sokoban/episodic_return": 1.0,
}


@pytest.fixture
def run(tmp_path):
    config = base.get_config()
    config.logging.sinks = ()
    with Run(config, tmp_path / "run", tiny_state(), IDENTITY, ["Sokoban"]) as run:
        run.record(1, HEALTHY)
        run.save(1, tiny_state(1))
        run.finish()
        yield run


def test_an_overflow_in_a_metric_is_named_and_the_run_goes_on(run):
    overflow = HEALTHY | {"train/Sokoban/episodic_return": float("inf")}
    news = run.record(2, overflow)
    assert news == [
        "iteration 2: not finite, recorded as null: train/Sokoban/episodic_return"
    ]
    assert run.records[-1]["train/Sokoban/episodic_return"] is None
    assert run.check_health(overflow, tiny_state(2)) is None
    run.save(2, tiny_state(2))


def test_a_lost_state_ends_the_run_and_names_the_good_checkpoint(run):
    state = tiny_state(2)
    lost = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), state.policy.params)
    state = state.replace(policy=state.policy.replace(params=lost))
    overflow = HEALTHY | {"actor/grad_norm": float("nan")}
    run.record(2, overflow)
    with pytest.raises(ValueError, match=r"after iteration 2 .* is \S*checkpoints/1:"):
        run.check_health(overflow, state)
    with pytest.raises(ValueError, match="nothing of it was saved"):
        run.save(2, state)
    folders = [path.name for path in (run.path / "checkpoints").iterdir()]
    assert folders == ["1"]
