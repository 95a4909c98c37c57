"""A server of agents' calls, which all tests of a file ask."""

import openai
import pytest

from tests.host_games.agent.serving import Model, serving


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def server(model):
    with serving(model) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="any") as client:
        yield client
