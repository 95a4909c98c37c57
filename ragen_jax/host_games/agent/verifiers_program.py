"""Plays episodes of an environment of verifiers, where that package is installed.

In: JSON as the only argument, {"env": an `EnvConfig` as verifiers reads it, "split":
"training", "validation" or null for all tasks, "limit": tasks that are read or null,
"metrics": [name, ...]}; then requests, a line of JSON each, on standard input. Out: a
line about the tasks, then an answer to every request, on what was standard output. It
imports nothing of ragen_jax, which needs not be installed here; `verifiers` starts it.

                                        {"num_tasks": 90}, or {"refused": sentence}
    {"number": 1, "task": {...},     -> {"number": 1, "result": {...}}, or
     "client": {...}}                   {"number": 1, "error": sentence}
    {"number": 1}                       ends it; it is answered as above

"task" and "client" are a `Task` and `ClientSettings` of `program`, "result" a `Result`
without its `success`. Episodes run side by side.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import random
import sys

import numpy as np
import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

# One task in so many is for validation, where no other tasks are.
HELD_OUT = 10
# Of a task's data: where it comes from, not what it is.
NOT_CONTENT = {"idx", "id", "name", "description"}
# The name of the harness below among verifiers' plugins.
CHAT = "ragen_jax_chat"
API_KEY = "RAGEN_JAX_API_KEY"
# Of a sentence that says what went wrong.
MAX_WORDS = 10_000


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """A dialogue with tools, in this process.

    It does what verifiers' `null` does, which starts a program for every dialogue and
    every message of a user, and makes an environment for it with uv.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx,
        trace,
        runtime,
        endpoint,
        secret,
        mcp_urls,
        data,
        tool_interception_url=None,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += map(message_to_wire, prompt or [])
        limit = self.config.tool_timeout
        servers = {name: {"url": u, "timeout": limit} for name, u in mcp_urls.items()}
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                openai.AsyncOpenAI(
                    base_url=endpoint, api_key=secret, max_retries=0, timeout=None
                )
            )
            connected = await connect_mcp({"mcpServers": servers}, stack)
            tools = Tools(*connected, client, tool_interception_url)
            try:
                await _talk(client, ctx.model, messages, tools)
            except openai.APIStatusError as error:
                # A dialogue that has become too long ends, and is judged as it is. Of
                # others the trace knows whether a rule or a fault ended them.
                if not is_context_overflow(error):
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


@dataclasses.dataclass(frozen=True)
class Tools:
    """What a dialogue can use.

    Attributes:
      schemas: of the tools.
      places: name of a tool -> its server, and its name there.
      servers: by their names.
      client: of the model.
      gate: URL that is asked before each use; None: all are allowed.
    """

    schemas: list
    places: dict
    servers: dict
    client: openai.AsyncOpenAI
    gate: str | None

    async def use(self, call) -> dict | None:
        """The message that answers a call; None where the gate ends the episode."""
        function, told = call.function, {"role": "tool", "tool_call_id": call.id}
        try:
            arguments = json.loads(function.arguments or "{}")
        except ValueError:
            arguments = function.arguments
        if self.gate is not None:
            asked = {"tool_call_id": call.id, "name": function.name}
            decision = await self.client.post(
                self.gate, cast_to=object, body={**asked, "arguments": arguments}
            )
            if decision["action"] == "deny":
                return decision["message"]
            if decision["action"] == "stop":
                return None
        if function.name not in self.places:
            names = ", ".join(self.places)
            return {
                **told,
                "content": f"There is no tool {function.name}; use {names}.",
            }
        if not isinstance(arguments, dict):
            return {**told, "content": "The arguments are no JSON object."}
        said = await call_mcp(self.servers, self.places, function.name, arguments)
        return {**told, "content": said}


async def _talk(client, model: str, messages: list, tools: Tools) -> None:
    """Until a reply calls no tool, or the gate ends it."""
    given = {"tools": tools.schemas} if tools.schemas else {}
    while True:
        completion = await client.chat.completions.create(
            model=model, messages=messages, **given
        )
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            answer = await tools.use(call)
            if answer is None:
                return
            messages.append(answer)


def make_environment(given: dict) -> vf.Env:
    """The environment; what it leaves open runs on this machine.

    A role without a harness, or with `null`, gets `ChatHarness`; one without a runtime
    a process of this machine in place of a sandbox of Prime Intellect.
    """
    # Harnesses are found by the names of modules.
    sys.modules[CHAT] = sys.modules[__name__]
    taskset = given["taskset"]["id"]
    kind = vf.env_config_type(taskset, given.get("id", ""))
    has_harness = vf.default_harness_id(taskset) == taskset
    for name, field in kind.model_fields.items():
        role = field.default
        if not isinstance(role, vf.AgentConfig):
            continue
        asked = given[name] = dict(given.get(name) or {})
        if "runtime" not in role.model_fields_set:
            asked.setdefault("runtime", {"type": "subprocess"})
        is_plain = role.harness is not None and role.harness.id == "null"
        if is_plain or (role.harness is None and not has_harness):
            asked.setdefault("harness", {"id": CHAT})
    return vf.load_environment(vf.resolve_env_config(given))


def find_tasks(taskset: vf.Taskset, split: str | None, limit: int | None) -> list:
    """The tasks of a split, in their order.

    Raises:
      ValueError: there is none, or the taskset does not end.
    """
    name = taskset.config.id
    if limit is not None:
        taskset = taskset.take(limit)
    if not taskset.bounded:
        raise ValueError(f"{name} has tasks without end; set limit")
    tasks = list(taskset)
    if split is not None:
        contents = [_content(task) for task in tasks]
        different = sorted(set(contents))
        held_out = set(different[: max(1, len(different) // HELD_OUT)])
        is_held_out = split == "validation"
        pairs = zip(tasks, contents, strict=True)
        tasks = [task for task, x in pairs if (x in held_out) == is_held_out]
    if not tasks:
        raise ValueError(
            f"{name} has no task for {split}; hold out tasks of another configuration "
            "with the option validation"
        )
    return tasks


def _content(task: vf.Task) -> str:
    """A digest of what a task is about."""
    data = task.data.model_dump(mode="json", exclude=NOT_CONTENT)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


async def play(env: vf.Env, tasks: list, asked: dict, metrics: list[str]) -> dict:
    """The result of an episode.

    Raises:
      RuntimeError: the environment does not count it as finished.
      ValueError: see `_result`.
    """
    task, client = asked["task"], asked["client"]
    random.seed(task["seed"])
    np.random.seed(task["seed"])
    number = task["number"]
    os.environ[API_KEY] = client["api_key"]
    context = vf.ModelContext(
        client=vf.EvalClientConfig(base_url=client["base_url"], api_key_var=API_KEY),
        model=client["model"],
        sampling=vf.SamplingConfig(),
    )
    number = task["seed"] % len(tasks) if number is None else number
    episode = await env.run_episode(tasks[number], context)
    if not env.complete(episode):
        raise RuntimeError(_why(episode))
    return _result(episode, client["base_url"], metrics)


def _result(episode: vf.Episode, base_url: str, metrics: list[str]) -> dict:
    """Means over the roles that are trained.

    Args:
      base_url: of the policy.
      metrics: names of what is asked for.

    Raises:
      ValueError: the policy plays a role that is not trained, or a metric is missing.
    """
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    for trace in episode.traces:
        name, client = trace.agent.name, trace.agent.config.client
        if not trace.agent.trainable and client.base_url == base_url:
            raise ValueError(
                f"the environment does not train its role {name!r}, which the policy "
                f"plays; give it another model, config.{name}.model and .client"
            )
    if not trained:
        raise ValueError("the environment trained none of its roles in this episode")
    numbers: dict[str, list[float]] = {name: [] for name in metrics}
    for trace in trained:
        rewards = {n: x.score for n, x in trace.rewards.items() if x is not None}
        for name, value in (rewards | trace.metrics).items():
            if name in numbers and value is not None:
                numbers[name].append(value)
    for name, values in numbers.items():
        if not values:
            raise ValueError(f"metrics has {name!r}, which the episode did not record")
    return {
        "reward": _mean([trace.reward for trace in trained]),
        "metrics": {name: _mean(values) for name, values in numbers.items()},
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _why(episode: vf.Episode) -> str:
    """The last error of an episode, without its traceback."""
    traces = [error for trace in episode.traces for error in trace.errors]
    errors = [*traces, *episode.errors]
    if not errors:
        return "the environment says that the episode is not complete"
    return f"{errors[-1].type}: {errors[-1].message}"


class Server:
    """Answers requests until there are no more."""

    def __init__(self, requests, answers):
        self._requests, self._answers = requests, answers
        self._episodes: dict[int, asyncio.Task] = {}

    def write(self, answer: dict) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    async def serve(self, document: dict) -> None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                env = make_environment(document["env"])
                tasks = find_tasks(env.taskset, document["split"], document["limit"])
                await stack.enter_async_context(env.serving())
            except Exception as error:  # an environment may raise anything
                self.write({"refused": _words(error)})
                return
            self.write({"num_tasks": len(tasks)})
            while line := await asyncio.to_thread(self._requests.readline):
                asked = json.loads(line)
                number = asked["number"]
                if "task" in asked:
                    playing = play(env, tasks, asked, document["metrics"])
                    episode = asyncio.create_task(playing)
                    self._episodes[number] = episode
                    episode.add_done_callback(functools.partial(self._answer, number))
                elif number in self._episodes:
                    self._episodes[number].cancel()
            for episode in self._episodes.values():
                episode.cancel()

    def _answer(self, number: int, episode: asyncio.Task) -> None:
        del self._episodes[number]
        if episode.cancelled():
            answer = {"error": "it was ended"}
        elif error := episode.exception():
            answer = {"error": _words(error)}
        else:
            answer = {"result": episode.result()}
        self.write({"number": number, **answer})


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_WORDS]


def main() -> None:
    # Environments and what they start may print and read; their words must not stand
    # among the answers, nor may they take the requests.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    asyncio.run(Server(requests, answers).serve(json.loads(sys.argv[1])))


__all__ = ["ChatHarness"]

if __name__ == "__main__":
    main()
