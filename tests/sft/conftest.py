"""One tiny checkpoint for all tests of fine-tuning."""

import pytest

from tests.sft import tiny


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return tiny.write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
