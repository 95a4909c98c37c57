"""Plays games with TextWorld; run by a Python that has it, imports nothing of ours.

In: a line of JSON on standard input, a list of [file's content, whether names are
ALFWorld's, seed, number of replies]; where the domain is null, ALFRED's domain and
grammar are put in. Out: a line of JSON, for each game its content and what was shown,
[command, feedback, commands possible then, won]; the first command is "". Null is shown
of games without a solution, which TextWorld cannot play.
"""

import importlib.util
import json
import pathlib
import random
import sys

from textworld import EnvInfos
from textworld.envs import PddlEnv


def alfred():
    package = importlib.util.find_spec("alfworld").submodule_search_locations[0]
    data = pathlib.Path(package) / "data"
    grammar = (data / "alfred.twl2").read_text()
    return {
        "pddl_domain": (data / "alfred.pddl").read_text(),
        "grammar": grammar.replace("UNKNOWN GOAL", "tidy up"),
    }


def play(game, with_names, seed, num_replies):
    env = PddlEnv(EnvInfos(admissible_commands=True, policy_commands=seed % 2 == 0))
    try:
        env.load(game)
    except KeyError as error:
        # Its planner has replaced a problem without a solution by an empty one.
        if error.args != ("val1",):
            raise
        return None
    if with_names:
        from alfworld.agents.utils.misc import Demangler

        names = Demangler(game_infos=env._entity_infos)
        for info in env._entity_infos.values():
            info.name = names.demangle_alfred_name(info.id)
    draw = random.Random(seed)
    state = env.reset()
    # Of every other game its planner's plan is played; to plan again takes long.
    plan = list(state.get("policy_commands") or [])
    env.request_infos.policy_commands = False
    shown = [["", state.feedback, state["admissible_commands"], state["won"]]]
    seen = set()
    for _ in range(num_replies):
        if state["won"]:
            break
        possible = sorted(state["admissible_commands"])
        seen |= set(possible)
        # Going about is most of what is possible and least of what happens.
        busy = [x for x in possible if not x.startswith("go to")]
        choices = [sorted(seen), possible, busy, busy]
        command = plan.pop(0) if plan else draw.choice(draw.choice(choices))
        state, _, _ = env.step(command)
        shown.append(
            [command, state.feedback, state["admissible_commands"], state["won"]]
        )
    return shown


if __name__ == "__main__":
    transcripts = []
    for content, with_names, seed, num_replies in json.loads(sys.stdin.readline()):
        full = alfred() if content["pddl_domain"] is None else {}
        full = content | full
        transcripts.append([full, play(full, with_names, seed, num_replies)])
    print(json.dumps(transcripts))
