"""The rules of invented houses once more, without PDDL and without a grammar.

Slow and plain; knows nothing of the game but the facts and the goal in a file's text.
"""

import collections
import re
from typing import NamedTuple

TOOLS = {
    "clean": ("cleans", "clean"),
    "heat": ("heats", "hot"),
    "cool": ("cools", "cold"),
}


class Now(NamedTuple):
    """Where the player is, what is open, where the things are, and how."""

    at: str
    opened: frozenset
    where: tuple
    states: frozenset


class House:
    def __init__(self, problem):
        init, goal = problem.split("(:goal")
        self.facts = re.findall(r"\((\w+) ([\w ]+)\)", init.split("(:init")[1])
        self.places = [x for name, x in self.facts if name == "seen"]
        inside = [x.split() for name, x in self.facts if name == "in"]
        self.things = [thing for thing, _ in inside]
        self.start = Now("hall", frozenset(), tuple(p for _, p in inside), frozenset())
        self.goal = re.findall(r"\((in|holds|lit|hot|cold|clean) ([\w ]+)\)", goal)

    def has(self, name, x):
        return (name, x) in self.facts

    def is_open(self, now, place):
        return place in now.opened or not self.has("openable", place)

    def placed(self, now):
        return list(zip(self.things, now.where, strict=True))

    def held(self, now):
        return next((x for x, p in self.placed(now) if p == "hand"), None)

    def put(self, now, thing, place):
        moved = tuple(place if x == thing else p for x, p in self.placed(now))
        return now._replace(where=moved)

    def commands(self, now):
        here, held = now.at, self.held(now)
        after = {f"go to {x}": now._replace(at=x) for x in self.places if x != here}
        after["look"] = now
        if here == "hall":
            return after
        if self.has("openable", here):
            word = "close" if here in now.opened else "open"
            after[f"{word} {here}"] = now._replace(opened=now.opened ^ {here})
        for thing, place in self.placed(now):
            fixed = self.has("fixed", thing)
            if place == here and fixed and ("lit", thing) not in now.states:
                lit = now.states | {("lit", thing)}
                after[f"use {thing}"] = now._replace(states=lit)
            if place == here and not fixed and held is None and self.is_open(now, here):
                after[f"take {thing} from {here}"] = self.put(now, thing, "hand")
        if held is not None:
            if self.is_open(now, here):
                after[f"move {held} to {here}"] = self.put(now, held, here)
            for verb, (tool, state) in TOOLS.items():
                new = (state, held)
                is_able = self.has(tool, here) and self.has(f"{verb}able", held)
                if is_able and new not in now.states:
                    undone = {"hot": "cold", "cold": "hot"}.get(state)
                    states = (now.states | {new}) - {(undone, held)}
                    treated = now._replace(states=states)
                    after[f"{verb} {held} with {here}"] = treated
        return after

    def is_won(self, now):
        where = dict(self.placed(now))
        for name, x in self.goal:
            first, *rest = x.split()
            if name == "in" and where[first] != rest[0]:
                return False
            if name == "holds" and where[rest[0]] != "hand":
                return False
            if name == "lit" and (
                where[first] != now.at or ("lit", first) not in now.states
            ):
                return False
            if name in ("hot", "cold", "clean") and (name, first) not in now.states:
                return False
        return True

    def says(self, now, command):
        """What is shown after a command that has led here."""
        verb, *words = command.split()
        if verb == "use":
            return f"The {words[0]} is on."
        if verb == "move":
            return f"You move the {words[0]} to the {words[2]}."
        shown = f"On the {now.at}: {self._list(now)}."
        if self.has("openable", now.at):
            is_open = now.at in now.opened
            inside = f"In the {now.at}: {self._list(now)}."
            shown = inside if is_open else f"The {now.at} is closed."
        if now.at == "hall":
            shown = f"You see: {', '.join(sorted(self.places))}."
        held = self.held(now) or "nothing"
        states = {name for name, x in now.states if x == held}
        words = [x for x in ("hot", "cold", "clean") if x in states] + [held]
        hand = f"You hold: {' '.join(words)}."
        if verb == "look":
            return f"{shown} {hand}"
        return hand if verb in ("take", "clean", "heat", "cool") else shown

    def _list(self, now):
        here = [x for x, p in self.placed(now) if p == now.at]
        return ", ".join(sorted(here)) or "nothing"

    def fewest_commands(self):
        """Length of a shortest plan, by searching all states."""
        waiting, seen = collections.deque([(self.start, 0)]), {self.start}
        while waiting:
            now, count = waiting.popleft()
            if self.is_won(now):
                return count
            for after in self.commands(now).values():
                if after not in seen:
                    seen.add(after)
                    waiting.append((after, count + 1))
        return None
