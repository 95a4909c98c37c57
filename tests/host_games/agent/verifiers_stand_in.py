"""Stands in for the package verifiers: what `verifiers_program` uses of it.

A test copies this file to a folder as the package; all modules are this one. Tasksets
are named after what they do.
"""

import asyncio
import contextlib
import os
import pathlib
import random
import sys
import time
import types

_MODULES = (
    "v1",
    "v1.dialects",
    "v1.dialects.chat",
    "v1.harnesses",
    "v1.harnesses.utils",
    "v1.harnesses.utils.compaction",
    "v1.harnesses.utils.mcp",
)
for _name in _MODULES:
    sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]
v1 = dialects = chat = harnesses = utils = sys.modules[__name__]


def message_to_wire(message):
    return message


def is_context_overflow(error):
    return error.status_code == 400 and "context_length" in str(error.body)


async def connect_mcp(config, stack):
    """A tool for each server; the stack closes it."""
    schemas, places = [], {}
    for name, spec in config["mcpServers"].items():
        assert spec["timeout"] == 5
        stack.callback(print, "closed", spec["url"])
        function = {"name": f"{name}_double", "parameters": {"type": "object"}}
        schemas.append({"type": "function", "function": function})
        places[f"{name}_double"] = (name, "double")
    return schemas, places, config["mcpServers"]


async def call_mcp(servers, places, name, arguments):
    assert places[name][0] in servers
    return str(2 * arguments["number"])


class _Generic:
    def __class_getitem__(cls, item):
        return cls


class HarnessConfig:
    def __init__(self, id="null"):
        self.id, self.tool_timeout = id, 5


class Harness(_Generic):
    def __init__(self, config):
        self.config = config

    def resolve_prompt(self, data):
        return data.system_prompt, data.prompt


class AgentConfig:
    def __init__(self, harness=None, **fields):
        self.harness, self.model_fields_set = harness, set(fields)


class ProgramResult(types.SimpleNamespace):
    """Of a harness."""


class ModelContext(types.SimpleNamespace):
    """Who plays."""


class EvalClientConfig(types.SimpleNamespace):
    """Of a client."""


class SamplingConfig(types.SimpleNamespace):
    """How replies are sampled."""


class Episode(types.SimpleNamespace):
    """What was played."""


class Taskset:
    """Tasks without end for "endless", the same text twice for "pairs"."""

    def __init__(self, settings):
        self.config = types.SimpleNamespace(id=settings["id"])
        self._count = settings.get("count", 30)
        self._first = settings.get("first", 0)
        self.bounded = settings["id"] != "endless"

    def take(self, limit):
        self._count, self.bounded = limit, True
        return self

    def __iter__(self):
        for i in range(self._first, self._first + self._count):
            number = i // 2 if self.config.id == "pairs" else i
            yield Task(i, f"number {number}")


class Task:
    def __init__(self, idx, prompt):
        self.data = types.SimpleNamespace(
            idx=idx, prompt=prompt, system_prompt=None, model_dump=self._dump
        )

    def _dump(self, mode, exclude):
        assert mode == "json"
        fields = {"idx": self.data.idx, "prompt": self.data.prompt}
        return {name: x for name, x in fields.items() if name not in exclude}


def env_config_type(taskset, environment):
    """Of an environment with one role, and a setting besides."""
    if taskset == "nobody":
        raise ModuleNotFoundError("there is no taskset nobody")
    defaults = {"agent": AgentConfig(), "seconds": None}
    fields = {name: types.SimpleNamespace(default=x) for name, x in defaults.items()}
    return types.SimpleNamespace(model_fields=fields)


def default_harness_id(taskset):
    return "bash"


def resolve_env_config(given):
    assert given["agent"]["runtime"] == {"type": "subprocess"}
    return given


def load_environment(config):
    return Env(config)


class Env:
    """Plays a task as the name of its taskset says."""

    def __init__(self, config):
        # Harnesses are modules that export a class.
        module = sys.modules[config["agent"]["harness"]["id"]]
        (name,) = module.__all__
        self._harness = getattr(module, name)(HarnessConfig())
        self.taskset, self._is_serving = Taskset(config["taskset"]), False

    @contextlib.asynccontextmanager
    async def serving(self):
        self._is_serving = True
        yield

    def complete(self, episode):
        return episode.ok

    async def run_episode(self, task, context):
        assert self._is_serving
        # What an episode changes is its own.
        task = Task(task.data.idx, task.data.prompt)
        kind = self.taskset.config.id
        trace = types.SimpleNamespace(
            errors=[],
            metrics={"skipped": None},
            rewards={},
            agent=types.SimpleNamespace(
                name="agent",
                trainable=kind != "untrained",
                config=types.SimpleNamespace(client=context.client),
            ),
        )
        episode = Episode(ok=True, traces=[trace], errors=[])
        await _BEFORE.get(kind, _nothing)(task, episode)
        urls = {"s": "http://s"} if kind == "tools" else {}
        data, url = task.data, context.client.base_url
        result = await self._harness.launch(
            context,
            trace,
            None,
            url,
            os.environ[context.client.api_key_var],
            urls,
            data,
        )
        await _AFTER.get(kind, _nothing)(task, episode)
        if result.exit_code:
            error = types.SimpleNamespace(type="HarnessError", message=result.stderr)
            trace.errors.append(error)
            episode.ok = False
        # Half of the reward is for the parity.
        trace.rewards["even"] = types.SimpleNamespace(score=task.data.idx % 2 == 0)
        trace.reward = 0.5 * trace.rewards["even"].score
        return episode


async def _nothing(task, episode):
    """Neither before the dialogue nor after it."""


async def _draw(task, episode):
    await asyncio.sleep(0)
    task.data.prompt += f", {random.random()}"


async def _print(task, episode):
    print("words of an environment")
    assert not sys.stdin.read()


async def _raise(task, episode):
    raise ZeroDivisionError("a task broke")


async def _exit(task, episode):
    os._exit(3)


async def _hang(task, episode):
    await asyncio.sleep(600)


async def _block(task, episode):
    pathlib.Path(os.environ["BLOCKED"]).touch()
    time.sleep(600)


async def _converse(task, episode):
    said = {"role": "user", "content": task.data.prompt}
    task.data.system_prompt = "Be brief."
    task.data.prompt = [said, {"role": "assistant", "content": "What?"}, said]


async def _twice(task, episode):
    """A second role, whose reward is 1."""
    role = types.SimpleNamespace(**vars(episode.traces[0]))
    role.rewards, role.reward = {}, 1.0
    role.metrics = {"words": 4.0}
    episode.traces.append(role)


_BEFORE = {
    "draws": _draw,
    "prints": _print,
    "raises": _raise,
    "converses": _converse,
}
_AFTER = {"exits": _exit, "hangs": _hang, "blocks": _block, "two": _twice}
