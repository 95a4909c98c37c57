"""OpenEnv's own judgement of a running server, as JSON on standard output.

Run by the Python of a virtual environment that has openenv, with the server's URL:
its validator, the graders of a recorded episode, and the official client.
"""

import json
import sys
import time
import types

from openenv.cli._validation import validate_running_environment
from openenv.core.generic_client import GenericEnvClient
from openenv.validation.graders.runtime import basic
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.contracts import RuntimePlan, RuntimeReset


def grade(url: str, answers: list[str]) -> dict:
    reset = RuntimeReset(episode_id="graded", seed=5)
    actions = [{"answer": answer} for answer in answers]
    plan = RuntimePlan(plan_schema_version="1", reset=reset, actions=actions)
    evidence = collect_runtime_evidence(url, plan, episode_timeout_s=60)
    reward = types.SimpleNamespace(range=(-1000.0, 1000.0))
    subject = types.SimpleNamespace(
        runtime_evidence=evidence, manifest=types.SimpleNamespace(reward=reward)
    )
    graders = (
        basic.RewardWellFormedGrader,
        basic.ObservationSchemaGrader,
        basic.StateContractGrader,
    )
    results = [grader().run(subject) for grader in graders]
    return {
        "graders": {r.check_id: [r.status.value, r.evidence] for r in results},
        "exchanges": [
            [json.loads(e.request_json), json.loads(e.response_json)]
            for e in evidence.exchanges
        ],
        "failure": evidence.failure_reason,
    }


def play(url: str, answers: list[str], num_messages: int) -> dict:
    with GenericEnvClient(base_url=url).sync() as client:
        first = client.reset(seed=5)
        steps = []
        for answer in answers:
            result = client.step({"answer": answer})
            steps.append([result.observation["text"], result.reward, result.done])
            if result.done:
                break
        state = client.state()
        began = time.perf_counter()
        for _ in range(num_messages):
            client.state()
        seconds = time.perf_counter() - began
    return {
        "first": first.observation["text"],
        "steps": steps,
        "state": state,
        "messages_per_second": num_messages / seconds if num_messages else None,
    }


def main() -> None:
    url, answers, num_messages = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    report = {
        "validator": validate_running_environment(url),
        **grade(url, answers),
        "client": play(url, answers, num_messages),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
