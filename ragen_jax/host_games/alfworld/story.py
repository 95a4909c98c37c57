"""Plays the game of one file: commands in, sentences out.

In: the JSON object of a `game.tw-pddl` file. Out: a `Story`, which knows its commands,
answers and end. Does not know of steps, rewards and files.

Source: ALFWorld's names of objects (`AlfredDemangler`), TextWorld's `PddlEnv`.
"""

import collections
from collections.abc import Mapping

from ragen_jax.host_games.alfworld.grammar import Scene, read_grammar, read_text, speak
from ragen_jax.host_games.alfworld.logic import Move, State, World
from ragen_jax.host_games.alfworld.pddl import read_domain, read_problem
from ragen_jax.host_games.common.texts import compose

# The form of names of Unity's objects: Mug|-00.40|+00.86.
_MANGLED = "_bar_"
_INTRO = read_text("#intro#")
TEXTS = ("pddl_domain", "grammar", "pddl_problem")


class Story:
    """A game that can be played from any of its states.

    Attributes:
      world: its logic; `world.start` is the first state.
      walkthrough: commands that win from the first state; empty where none are known.
    """

    def __init__(self, game: Mapping[str, object]):
        """Read a game.

        Raises:
          ValueError: a part is missing or cannot be read.
        """
        for key in TEXTS:
            if not isinstance(game.get(key), str):
                raise ValueError(f"the game has no text {key!r}")
        domain = read_domain(game["pddl_domain"])
        problem = read_problem(game["pddl_problem"], domain)
        self._grammar = read_grammar(game["grammar"])
        self.world = World(domain, problem)
        silent = sorted(set(self.world.parameters) - set(self._grammar.templates))
        if silent:
            raise ValueError(f"the grammar has no command for the action {silent[0]}")
        self._names = names(x for fact in problem.facts for x in fact[1:])
        self._placeholders = {
            action: [(name.strip("?"), type_) for name, type_ in parameters]
            for action, parameters in self.world.parameters.items()
        }
        self.walkthrough = self._read_walkthrough(game.get("walkthrough") or [])

    def _read_walkthrough(self, walkthrough: object) -> tuple[str, ...]:
        """Some files name objects as players do, some as the problem does."""
        is_list = isinstance(walkthrough, list)
        if not is_list or not all(isinstance(line, str) for line in walkthrough):
            raise ValueError("the walkthrough is not a list of commands")
        return tuple(
            " ".join(self._names.get(word, word) for word in plain(line).split())
            for line in walkthrough
        )

    def intro(self) -> str:
        """The first text of an episode."""
        return speak(self._grammar, _INTRO, self._scene(self.world.start))

    def command(self, state: State, move: Move) -> str:
        """How a move that is possible in a state is written."""
        template = self._grammar.templates[move.action]
        text = speak(self._grammar, template, self._scene(state, move))
        return plain(text)

    def commands(self, state: State) -> dict[str, Move]:
        """The possible commands in alphabetical order.

        Where two moves have the same command it is the first one's.
        """
        commands: dict[str, Move] = {}
        for move in self.world.moves(state):
            commands.setdefault(self.command(state, move), move)
        return dict(sorted(commands.items()))

    def answer(self, state: State, move: Move) -> str:
        """The text after a move, in the state that it led to."""
        said = self._grammar.answers[move.action]
        return speak(self._grammar, said, self._scene(state, move))

    def _scene(self, state: State, move: Move | None = None) -> Scene:
        matched = {}
        if move is not None:
            placeholders = self._placeholders[move.action]
            matched = dict(zip(placeholders, move.arguments, strict=True))
        return Scene(state, self.world.members, self._names, matched)


def plain(text: str) -> str:
    """A command in lower case, with single blanks, letters composed (NFC)."""
    return " ".join(compose(text).lower().split())


def names(objects) -> dict[str, str]:
    """Names of objects: their kind and, where their id says where they are, a number.

    Numbers go down in the order of the ids, as in ALFWorld. What is in a basin is named
    after it: the sink's receptacle is `sinkbasin 1`.
    """
    kinds = {}
    for object_ in sorted(set(objects)):
        kind, mark, _ = object_.partition(_MANGLED)
        kinds[object_] = kind + ("basin" if mark and "basin" in object_ else "")
    left = collections.Counter(kinds[x] for x in kinds if _MANGLED in x)
    named = {}
    for object_, kind in kinds.items():
        named[object_] = kind
        if _MANGLED in object_:
            named[object_] = f"{kind} {left[kind]}"
            left[kind] -= 1
    return named
