"""Invents houses with a task, in the format of ALFWorld's files.

In: a seed. Out: what a `game.tw-pddl` file holds, with a shortest plan as walkthrough.
Never gives a goal or a house of the other split.

The houses are ALFRED's made small: 4 to 6 receptacles and 3 to 5 things, each of its
own kind, so that names need no numbers; everything fits everywhere, and texts are
short. TextWorld plays them, too.
"""

import collections
import dataclasses
import functools
import random
from collections.abc import Callable

from ragen_jax.host_games.alfworld.logic import Move, State, World
from ragen_jax.host_games.alfworld.story import Story
from ragen_jax.host_games.base import VALIDATION
from ragen_jax.host_games.common.splits import VALIDATION_SHARE, split_of, stable_hash


def shortest_plan(
    world: World, state: State, may_help: Callable[[Move], bool]
) -> tuple[Move, ...] | None:
    """The first of the shortest plans, in the order of `World.moves`.

    Args:
      world: what is possible.
      state: where the plan begins.
      may_help: False of moves without which some shortest plan does.

    Returns:
      None: no plan leads to the goal.
    """
    if world.is_won(state):
        return ()
    came_from: dict[tuple, tuple[tuple, Move] | None] = {_key(state): None}
    waiting = collections.deque([state])
    while waiting:
        current = waiting.popleft()
        for move in filter(may_help, world.moves(current)):
            successor = world.apply(current, move)
            if (key := _key(successor)) in came_from:
                continue
            came_from[key] = _key(current), move
            if world.is_won(successor):
                return _plan(came_from, key)
            waiting.append(successor)
    return None


def _key(state: State) -> tuple:
    # The order of predicates is the same in all states of a world.
    return tuple(state.facts.values())


def _plan(came_from: dict, key: tuple) -> tuple[Move, ...]:
    moves = []
    while (step := came_from[key]) is not None:
        key, move = step
        moves.append(move)
    return tuple(reversed(moves))


PLACE, CLEAN, HEAT, COOL, LOOK = TASKS = ("place", "clean", "heat", "cool", "look")
TOOLS = {CLEAN: "sink", HEAT: "microwave", COOL: "fridge"}
LAMP = "lamp"
# Receptacles, and those of them that are closed at first.
CLOSED = ("cabinet", "drawer", "fridge", "microwave", "safe")
OPEN = ("bed", "desk", "shelf", "sink", "sofa", "table")
PLACES = CLOSED + OPEN
# Things, and what can be done to them besides carrying and looking at them.
THINGS = {
    "apple": (CLEAN, HEAT, COOL),
    "book": (),
    "bread": (HEAT, COOL),
    "cup": (CLEAN, HEAT, COOL),
    "egg": (CLEAN, HEAT, COOL),
    "fork": (CLEAN,),
    "key": (),
    "mug": (CLEAN, HEAT, COOL),
    "pen": (),
    "phone": (),
    "plate": (CLEAN, HEAT, COOL),
    "potato": (CLEAN, HEAT, COOL),
    "soap": (CLEAN,),
    "spoon": (CLEAN,),
    "tomato": (CLEAN, HEAT, COOL),
    "watch": (),
}
FEWEST_PLACES, MOST_PLACES = 4, 6
FEWEST_OTHERS, MOST_OTHERS = 2, 4

DOMAIN = """(define (domain house)
  (:requirements :adl :typing)
  (:types agent spot thing - object place - spot)
  (:predicates
    (at ?a - agent ?s - spot) (in ?t - thing ?p - place) (seen ?p - place)
    (holds ?a - agent ?t - thing) (busy ?a - agent)
    (openable ?p - place) (opened ?p - place)
    (cleans ?p - place) (heats ?p - place) (cools ?p - place)
    (cleanable ?t - thing) (heatable ?t - thing) (coolable ?t - thing)
    (clean ?t - thing) (hot ?t - thing) (cold ?t - thing)
    (fixed ?t - thing) (lit ?t - thing) (looked ?a - agent))
  (:action go
    :parameters (?a - agent ?s - spot ?p - place)
    :precondition (and (at ?a ?s) (seen ?p) (not (= ?s ?p)))
    :effect (and (not (at ?a ?s)) (at ?a ?p)))
  (:action open
    :parameters (?a - agent ?p - place)
    :precondition (and (at ?a ?p) (openable ?p) (not (opened ?p)))
    :effect (opened ?p))
  (:action close
    :parameters (?a - agent ?p - place)
    :precondition (and (at ?a ?p) (openable ?p) (opened ?p))
    :effect (not (opened ?p)))
  (:action take
    :parameters (?a - agent ?p - place ?t - thing)
    :precondition (and (at ?a ?p) (in ?t ?p) (not (fixed ?t)) (not (busy ?a))
      (imply (openable ?p) (opened ?p)))
    :effect (and (not (in ?t ?p)) (holds ?a ?t) (busy ?a)))
  (:action move
    :parameters (?a - agent ?p - place ?t - thing)
    :precondition (and (holds ?a ?t) (at ?a ?p) (imply (openable ?p) (opened ?p)))
    :effect (and (in ?t ?p) (not (holds ?a ?t)) (not (busy ?a))))
  (:action clean
    :parameters (?a - agent ?p - place ?t - thing)
    :precondition (and (holds ?a ?t) (cleanable ?t) (not (clean ?t)) (at ?a ?p)
      (cleans ?p))
    :effect (clean ?t))
  (:action heat
    :parameters (?a - agent ?p - place ?t - thing)
    :precondition (and (holds ?a ?t) (heatable ?t) (not (hot ?t)) (at ?a ?p)
      (heats ?p))
    :effect (and (hot ?t) (not (cold ?t))))
  (:action cool
    :parameters (?a - agent ?p - place ?t - thing)
    :precondition (and (holds ?a ?t) (coolable ?t) (not (cold ?t)) (at ?a ?p)
      (cools ?p))
    :effect (and (cold ?t) (not (hot ?t))))
  (:action use
    :parameters (?a - agent ?p - place ?t - thing)
    :precondition (and (at ?a ?p) (in ?t ?p) (fixed ?t) (not (lit ?t)))
    :effect (lit ?t))
  (:action look
    :parameters (?a - agent)
    :precondition ()
    :effect (looked ?a)))
"""

GRAMMAR = '''grammar :: """
{
  "intro": [{"rhs": "#room# Task: UNKNOWN GOAL."}],
  "room": [{"rhs": "You see: [{p.name | seen(p:place)}]."}],
  "view": [
    {"condition": "openable(p:place) & opened(p:place)",
     "rhs": "In the {p.name}: [{x.name | in(x:thing, p:place)}]."},
    {"condition": "openable(p:place)", "rhs": "The {p.name} is closed."},
    {"rhs": "On the {p.name}: [{x.name | in(x:thing, p:place)}]."}],
  "hand": [
    {"condition": "holds(a:agent, t:thing)",
     "rhs": "You hold: {#held# | holds(a:agent, t:thing)}."},
    {"rhs": "You hold: nothing."}],
  "held": [{"rhs": "#warmth##cleanness#{t.name}"}],
  "warmth": [{"condition": "hot(t:thing)", "rhs": "hot "},
    {"condition": "cold(t:thing)", "rhs": "cold "}, {"rhs": ""}],
  "cleanness": [{"condition": "clean(t:thing)", "rhs": "clean "}, {"rhs": ""}],
  "moved": [{"rhs": "You move the {t.name} to the {p.name}."}],
  "look": [
    {"condition": "at(a:agent, p:place)",
     "rhs": "{#view# | at(a:agent, p:place)} #hand#"},
    {"rhs": "#room# #hand#"}],
  "list_empty": [{"rhs": "nothing"}],
  "list_separator": [{"rhs": ", "}],
  "list_last_separator": [{"rhs": ", "}]
}
""";
action go { template :: "go to {p}"; feedback :: "#view#"; }
action open { template :: "open {p}"; feedback :: "#view#"; }
action close { template :: "close {p}"; feedback :: "#view#"; }
action take { template :: "take {t} from {p}"; feedback :: "#hand#"; }
action move { template :: "move {t} to {p}"; feedback :: "#moved#"; }
action clean { template :: "clean {t} with {p}"; feedback :: "#hand#"; }
action heat { template :: "heat {t} with {p}"; feedback :: "#hand#"; }
action cool { template :: "cool {t} with {p}"; feedback :: "#hand#"; }
action use { template :: "use {t}"; feedback :: "The {t.name} is on."; }
action look { template :: "look"; feedback :: "#look#"; }
'''


@dataclasses.dataclass(frozen=True)
class Goal:
    """What is to be done.

    Attributes:
      task: one of `TASKS`.
      thing: that it is done to.
      place: where the thing has to end; None: in the hand, under the lamp.
    """

    task: str
    thing: str
    place: str | None

    def text(self) -> str:
        """As the player reads it."""
        if self.place is None:
            return f"look at the {self.thing} under the {LAMP}"
        state = {PLACE: "", CLEAN: "clean ", HEAT: "hot ", COOL: "cold "}[self.task]
        article = "an" if not state and self.thing[0] in "aeiou" else "a"
        return f"put {article} {state}{self.thing} in the {self.place}"

    def condition(self) -> str:
        """As PDDL."""
        if self.place is None:
            return (
                f"(and (holds you {self.thing}) (lit {LAMP}) (exists (?p - place) "
                f"(and (at you ?p) (in {LAMP} ?p))))"
            )
        state = {PLACE: "", CLEAN: "clean", HEAT: "hot", COOL: "cold"}[self.task]
        also = f" ({state} {self.thing})" if state else ""
        return f"(and (in {self.thing} {self.place}){also})"


@functools.cache
def goals(task: str, split: str) -> tuple[Goal, ...]:
    """The goals of a split.

    One in ten is for validation in every house; training never asks for it.
    """
    if task == LOOK:
        everything = [Goal(LOOK, thing, None) for thing in THINGS]
    else:
        everything = [
            Goal(task, thing, place)
            for thing, uses in THINGS.items()
            for place in PLACES
            if (task == PLACE or task in uses) and place != TOOLS.get(task)
        ]
    everything.sort(key=lambda goal: stable_hash(goal.text()))
    held_back = everything[:: round(1 / VALIDATION_SHARE)]
    if split == VALIDATION:
        return tuple(held_back)
    return tuple(goal for goal in everything if goal not in held_back)


def invent(seed: int, tasks: tuple[str, ...], split: str) -> dict[str, object]:
    """A house with a goal, both of the split.

    Args:
      seed: which one.
      tasks: some of `TASKS`, of which each is as frequent.
      split: "training" or "validation".

    Returns:
      What a `game.tw-pddl` file holds, without a walkthrough, which takes a search.
    """
    draw = random.Random(seed)
    task = draw.choice(tasks)
    goal = draw.choice(goals(task, split))
    # The same share of houses is for validation.
    while split_of(house := _house(goal, draw)) != split:
        pass
    return {
        "pddl_domain": DOMAIN,
        "grammar": GRAMMAR.replace("UNKNOWN GOAL", goal.text()),
        "pddl_problem": f"(define (problem house)\n{house}\n"
        f"(:goal {goal.condition()}))\n",
        "solvable": True,
    }


def _house(goal: Goal, draw: random.Random) -> str:
    """Objects and facts, the same text for the same house."""
    needed = {goal.place, TOOLS.get(goal.task)} - {None}
    if goal.task == LOOK:
        needed = {draw.choice(OPEN)}
    places = _fill(needed, PLACES, draw.randint(FEWEST_PLACES, MOST_PLACES), draw)
    others = draw.randint(FEWEST_OTHERS, MOST_OTHERS)
    things = _fill({goal.thing}, tuple(THINGS), 1 + others, draw)
    where = {thing: draw.choice(places) for thing in things}
    where[goal.thing] = draw.choice([place for place in places if place != goal.place])
    for_lamp = [place for place in places if place in OPEN]
    has_lamp = goal.task == LOOK or (bool(for_lamp) and draw.random() < 0.5)
    if has_lamp:
        where[LAMP] = draw.choice(for_lamp)
    facts = ["(at you hall)"]
    facts += [f"(seen {place})" for place in places]
    facts += [f"(openable {place})" for place in places if place in CLOSED]
    verbs = {CLEAN: "cleans", HEAT: "heats", COOL: "cools"}
    facts += [f"({verbs[x]} {tool})" for x, tool in TOOLS.items() if tool in places]
    facts += [f"({use}able {thing})" for thing in things for use in THINGS[thing]]
    facts += [f"(in {thing} {place})" for thing, place in sorted(where.items())]
    facts += [f"(fixed {LAMP})"] * has_lamp
    return (
        "(:domain house)\n(:objects you - agent hall - spot\n"
        f"  {' '.join(places)} - place\n  {' '.join(sorted(where))} - thing)\n"
        f"(:init {' '.join(facts)})"
    )


def _fill(needed: set[str], pool: tuple[str, ...], size: int, draw) -> list[str]:
    """Some of the pool, in its order, with those that are needed."""
    others = [name for name in pool if name not in needed]
    chosen = needed | set(draw.sample(others, size - len(needed)))
    return [name for name in pool if name in chosen]


def solve(story: Story, state: State) -> tuple[str, ...]:
    """Commands of a shortest plan in an invented house, from any of its states."""
    held = {thing for _, thing in state.facts["holds"]}
    idle = story.world.members["thing"] - story.world.aims - held

    def may_help(move: Move) -> bool:
        # Nothing is in the way of anything, so that things which the goal does not name
        # can stay where they are, and what is open can stay open.
        return move.action not in ("look", "close") and not idle & set(move.arguments)

    commands = []
    for move in shortest_plan(story.world, state, may_help):
        commands.append(story.command(state, move))
        state = story.world.apply(state, move)
    return tuple(commands)
