"""The real command trains on a served game."""

import json

import pytest

from tests import commands
from tests.serve.serving import host_game, serving

pytestmark = pytest.mark.slow


def test_two_iterations(model, tmp_path):
    with serving(host_game(), max_sessions=8) as server:
        words = commands.train_command(
            model,
            tmp_path / "run",
            env__host="ragen_jax.host_games.adapters.openenv:OpenEnvGame",
            env__kwargs__url=server.url.replace("http", "ws"),
            rollout__max_actions_per_turn=1,
            rollout__max_actions_per_episode=2,
            train__num_iterations=2,
            evaluation__every=None,
        )
        done = commands.call(words)
        assert done.returncode == 0, done.stderr
        assert "games failed" not in done.stderr
        # The trainer's workers are gone, and with them their sessions.
        assert server.sessions.wait_closed(10.0)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) >= 2
