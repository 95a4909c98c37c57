"""An agent whose tools take their time, for `benchmarks.agents`."""

import json
import random
import time
import urllib.request

from ragen_jax.host_games.agent.program import Result


def episode(task, client):
    """Two to six calls, a tool after each; both are drawn from the seed."""
    draw = random.Random(task.seed)
    messages, slept = [{"role": "user", "content": f"{task.seed}"}], 0.0
    for _ in range(draw.randint(2, 6)):
        body = json.dumps({"model": client.model, "messages": messages}).encode()
        request = urllib.request.Request(
            f"{client.base_url}/chat/completions",
            body,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            reply = json.load(response)["choices"][0]["message"]
        # Most tools are quick, and a few slow.
        seconds = min(draw.expovariate(1), 4) * task.options["seconds"]
        time.sleep(seconds)
        slept += seconds
        messages += [reply, {"role": "user", "content": "go on"}]
    return Result(0.0, metrics={"tool_seconds": slept})
