"""Agents as games: a program of the user that calls a model through the OpenAI API.

In: a function of the user, or a command. Out: a `HostGame` whose observations are the
program's calls (`calls.ChatCall`) and whose replies answer them (`calls.ChatAnswer`).
The program runs as it is and owns its loop: it runs tools, keeps or rewrites its
dialogue and decides when it is done. A server on 127.0.0.1 takes its calls.

The reward of an episode is what the function returns, or what another function makes
of the transcript. Every reply before the last earns 0.
"""

import contextlib
import dataclasses
import functools
import json
import numbers
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_jax.host_games.agent.api import ApiServer
from ragen_jax.host_games.agent.calls import (
    STOP,
    TOOL_CALLS,
    CallRefused,
    ChatAnswer,
    ChatCall,
)
from ragen_jax.host_games.agent.episode import Episode
from ragen_jax.host_games.agent.program import (
    ClientSettings,
    CommandRun,
    FunctionRun,
    Result,
    Task,
)
from ragen_jax.host_games.agent.tools import TOOL_FORMATS
from ragen_jax.host_games.base import (
    TRAINING,
    BrokenContract,
    HostGame,
    Observation,
    SpentProcess,
    Step,
)
from ragen_jax.host_games.common.files import parse_json
from ragen_jax.host_games.common.options import check_bool, check_whole, refuse_given
from ragen_jax.host_games.common.references import load_function
from ragen_jax.host_games.common.splits import check_split

# Of the server in the worker.
MODEL, API_KEY = "policy", "none"
# In place of a function, where a command plays.
COMMAND = "command"
# Seconds that a program gets to notice that its episode is over.
END_SECONDS = 1.0
# Key of a reply that refuses the call.
REFUSED = "refused"


class AgentGame(HostGame):
    """A program that calls the model.

    Contract: the same task and the same answers lead to the same calls. A program whose
    tools answer differently breaks it, and its runs cannot be repeated.
    """

    makes_calls = True

    def __init__(
        self,
        split: str = TRAINING,
        *,
        function: str,
        command: Sequence[str] | None = None,
        reward: str | None = None,
        expert: str | None = None,
        is_parallel: bool = False,
        num_tasks: int | None = None,
        metrics: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ):
        """Loads the program.

        Args:
          split: one of `SPLITS`.
          function: "package.module:function", called as `function(task, client)` with
            a `Task` and `ClientSettings`; it may be `async`, and returns a reward or a
            `Result`. "command": see `command`.
          command: a program and its arguments, started for every episode with
            OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL and AGENT_TASK (a `Task` as
            JSON) in its environment. The last line that it prints is the reward, or a
            `Result` as JSON.
          reward: "package.module:function", called as `reward(task, transcript,
            returned)` with pairs of `ChatCall` and `ChatAnswer`, and with what the
            function returned or the command printed; what it returns counts.
          expert: "package.module:function", called as `expert(task, call)`: what a
            good player replies, which `launch.sft` demonstrates.
          is_parallel: the program calls before an earlier call is answered. Its turns
            are then in the order of their texts, and prompts are read whole, so that
            nothing depends on which call came first.
          num_tasks: problems of each split; None: as many as there are seeds.
          metrics: names of the numbers in `Result.metrics`.
          options: of the program, as `task.options`.

        Raises:
          ValueError: an option is wrong, or there is no such function.
        """
        check_split(split)
        check_bool("is_parallel", is_parallel)
        self.is_parallel = is_parallel
        if num_tasks is not None:
            check_whole("num_tasks", num_tasks)
        self._name, self._start = _find_program(function, command)
        self._is_command = function == COMMAND
        self._judge = None if reward is None else load_function("reward", reward)
        self._expert = None if expert is None else load_function("expert", expert)
        self._split, self._options = split, dict(options or {})
        self.num_tasks, self.metrics = num_tasks, tuple(metrics)
        self.instruction = f"An agent's program: {self._name}."
        self._server: ApiServer | None = None
        self._episode: Episode | None = None
        self._call: ChatCall | None = None
        self._task: Task | None = None

    @property
    def name(self) -> str:
        return self._name

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Start the program, and wait for its first call.

        Raises:
          SpentProcess: the program of the episode before still runs.
          BrokenContract: this one ended without a call.
        """
        if not self._end_episode():
            raise SpentProcess(f"{self._name} runs on after the end of its episode")
        # A server of its own: threads that an earlier program has left behind must not
        # call in this episode.
        self._episode = Episode()
        self._server = self._listen(self._episode)
        self._task = Task(seed, task, self._split, self._options)
        client = ClientSettings(self._server.url, API_KEY, MODEL)
        self._episode.start(functools.partial(self._start, self._task, client))
        call = self._episode.next_call()
        if isinstance(call, ChatCall):
            self._call = call
            return _show(call)
        if call.error is not None:
            raise call.error
        raise BrokenContract(
            f"{self._name} returned {call.returned!r} without a call of the model; an "
            "episode has at least one"
        )

    def step(self, reply: str) -> Step:
        """Answer the call, and wait for the next one or for the program's end."""
        episode = self._episode
        num_before = sum(len(said.tool_calls) for _, said in episode.transcript)
        episode.answer(read_reply(reply, self._call, num_before))
        call = episode.next_call()
        if isinstance(call, ChatCall):
            self._call = call
            info = {"success": False, "valid": True}
            return Step(_show(call), 0.0, False, False, info)
        if call.error is not None:
            if not episode.was_refused:
                raise call.error
            # It could not go on without the model.
            return self._last_step(Result(0.0, success=False), is_cut=True)
        return self._last_step(self._judged(call.returned))

    def solution(self) -> tuple[str, ...]:
        """The expert's reply to the call: what it would say later depends on tools."""
        if self._expert is None:
            return ()
        return (str(self._expert(self._task, self._call)),)

    def close(self) -> None:
        self._end_episode()

    def _listen(self, episode: Episode) -> ApiServer:
        """The server that takes the calls of an episode."""
        return ApiServer(episode.ask, model=MODEL)

    def _end_episode(self) -> bool:
        """Answer no more calls; whether the program has ended."""
        if self._episode is None:
            return True
        has_ended = self._episode.end(END_SECONDS)
        self._server.close()
        return has_ended

    def _judged(self, returned: Any) -> Result:
        """The result of what a program returned."""
        by = self._name
        if self._judge is not None:
            by = "reward"
            returned = self._judge(
                self._task, tuple(self._episode.transcript), returned
            )
        elif self._is_command:
            returned = _last_line(by, returned)
        if (
            isinstance(returned, Result)
            and isinstance(returned.reward, numbers.Real)
            and isinstance(returned.metrics, Mapping)
        ):
            return returned
        if isinstance(returned, numbers.Real):
            return Result(float(returned))
        raise BrokenContract(
            f"{by} returned {returned!r}; it has to be the reward, a number, or a "
            "Result (ragen_jax/host_games/agent/program.py)"
        )

    def _last_step(self, result: Result, is_cut: bool = False) -> Step:
        if unlisted := sorted(set(result.metrics) - set(self.metrics)):
            raise BrokenContract(
                f"{self._name} gave the metric {unlisted[0]!r}, which is not recorded; "
                f"list it: metrics={(*self.metrics, *unlisted)!r} (env.kwargs)"
            )
        success = result.success
        info = {
            "success": result.reward > 0 if success is None else success,
            "valid": result.valid,
            **result.metrics,
        }
        return Step(Observation(""), result.reward, not is_cut, is_cut, info)


def read_reply(reply: str, call: ChatCall, num_before: int) -> ChatAnswer | CallRefused:
    """The answer that a reply is: JSON of one, of a refusal, or the text itself.

    Args:
      call: that is answered. If it offers tools, a text may call them, in the form
        "hermes" of `tools.TOOL_FORMATS`.
      num_before: calls of tools earlier in the episode.
    """
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        document = parse_json(reply.encode())
        if document.keys() == {REFUSED}:
            return CallRefused(**document[REFUSED])
        # A text may be JSON as well, but hardly with all fields of an answer.
        if document.keys() == {field.name for field in dataclasses.fields(ChatAnswer)}:
            return ChatAnswer.from_json(document)
    # A person, an expert, or any player of text.
    if not call.tools:
        return ChatAnswer(reply)
    content, calls, _ = TOOL_FORMATS["hermes"].read(reply, num_before)
    return ChatAnswer(content, calls, TOOL_CALLS if calls else STOP)


def write_refusal(refusal: CallRefused) -> str:
    """The reply that refuses a call."""
    fields = {"message": str(refusal), "status": refusal.status, "code": refusal.code}
    return json.dumps({REFUSED: fields})


def _show(call: ChatCall) -> Observation:
    return Observation(_last_texts(call), call=call.to_json())


def _last_texts(call: ChatCall) -> str:
    """What the call says after the model's last reply, for people."""
    texts: list[str] = []
    for message in reversed(call.messages):
        if message["role"] == "assistant":
            break
        texts.append(f"[{message['role']}] {message['content']}")
    return "\n".join(reversed(texts))


def _find_program(function: str, command: Sequence[str] | None) -> tuple[str, Callable]:
    """Its name, and `(task, client, when_ended) -> run`."""
    if function != COMMAND:
        refuse_given(f"but {function} plays; use agent:{COMMAND}", command=command)
        name = function.rpartition(":")[2]
        return name, functools.partial(FunctionRun, load_function("function", function))
    is_list = isinstance(command, Sequence) and not isinstance(command, str)
    if not is_list or not command or not all(isinstance(x, str) for x in command):
        raise ValueError(
            f"command is {command!r}; use a list of a program and its arguments, such "
            "as ('python', 'agent.py')"
        )
    if shutil.which(command[0]) is None:
        raise ValueError(f"command is {command!r}; there is no program {command[0]}")
    return COMMAND, functools.partial(CommandRun, tuple(command))


def _last_line(name: str, output: str) -> Any:
    """The result in the last line of a command's output."""
    lines = output.strip().splitlines()
    try:
        returned = parse_json(lines[-1].encode())
        return Result(**returned) if isinstance(returned, dict) else returned
    except (IndexError, ValueError, TypeError):
        raise BrokenContract(
            f"{name} printed {(lines or [''])[-1][:80]!r} at its end; its last line "
            "has to be the reward, or a Result as JSON"
        ) from None
