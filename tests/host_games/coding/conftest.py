"""The isolations of programs that can be had here."""

import pytest

from ragen_jax.host_games.coding.judge import ISOLATIONS, LocalSandbox


@pytest.fixture(scope="module", params=ISOLATIONS)
def sandbox(request):
    try:
        sandbox = LocalSandbox(request.param, memory_mb=512)
    except ValueError as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()
