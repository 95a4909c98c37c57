"""Agent frameworks play with the server, where they are installed."""

import subprocess
import sys

import pytest

from ragen_jax.host_games.agent.calls import ChatAnswer
from ragen_jax.host_games.agent.messages import write_call
from tests.host_games.agent.serving import MODEL, Model, serving


def test_the_server_needs_no_model_library():
    """It runs in worker processes, which start fast and hold little."""
    source = (
        "import sys, ragen_jax.host_games.agent.api, ragen_jax.host_games.agent.tools\n"
        "print({'jax', 'transformers', 'openai', 'numpy'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", source]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"


def needs(name):
    return pytest.importorskip(name, reason=f"{name} is not installed (it is optional)")


def use_a_tool(call):
    """Calls the first tool once, then says what it gave."""
    if call.messages[-1]["role"] == "tool":
        return ChatAnswer(f"It is {call.messages[-1]['content']}.")
    name = call.tools[0]["function"]["name"]
    calls = (write_call("call_0", name, '{"number": 1}'),)
    return ChatAnswer("", calls, "tool_calls")


@pytest.mark.live
@pytest.mark.parametrize("has_responses", [False, True])
def test_langchain(has_responses):
    openai = needs("langchain_openai")
    messages, tools = needs("langchain_core.messages"), needs("langchain_core.tools")

    @tools.tool
    def add(number: int) -> int:
        """Adds one."""
        return number + 1

    with serving(Model(use_a_tool)) as server:
        model = openai.ChatOpenAI(
            model=MODEL,
            base_url=server.url,
            api_key="any",
            use_responses_api=has_responses,
        ).bind_tools([add])
        said = [messages.SystemMessage("be kind"), messages.HumanMessage("hi")]
        said.append(model.invoke(said))
        said += [add.invoke(call) for call in said[-1].tool_calls]
        assert model.invoke(said).text == "It is 2."
        assert "".join(piece.text for piece in model.stream(said)) == "It is 2."


@pytest.mark.live
@pytest.mark.parametrize("stream", [False, True])
def test_smolagents(stream):
    smolagents = needs("smolagents")
    code = ChatAnswer("Thought: easy\n<code>\nfinal_answer(6 * 7)\n</code>")
    with serving(Model(code)) as server:
        model = smolagents.OpenAIModel(MODEL, api_base=server.url, api_key="any")
        agent = smolagents.CodeAgent(
            tools=[], model=model, max_steps=1, verbosity_level=0, stream_outputs=stream
        )
        assert agent.run("hi") == 42


@pytest.mark.live
def test_smolagents_calls_tools():
    """It asks for a call in every reply, unless the model is made with "auto"."""
    smolagents = needs("smolagents")

    def answer(call):
        calls = (write_call("call_0", "final_answer", '{"answer": "42"}'),)
        return ChatAnswer("", calls, "tool_calls")

    with serving(Model(answer)) as server:
        for choice, wanted in (("auto", "42"), ("required", None)):
            model = smolagents.OpenAIModel(
                MODEL, api_base=server.url, api_key="any", tool_choice=choice
            )
            agent = smolagents.ToolCallingAgent(
                tools=[], model=model, max_steps=1, verbosity_level=0
            )
            if wanted is None:
                with pytest.raises(smolagents.AgentError, match="tool_choice"):
                    agent.run("hi")
            else:
                assert agent.run("hi") == wanted
