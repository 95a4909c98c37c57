"""Generated theorems of propositional logic, of graded size, in two splits.

In: a seed. Out: hypotheses and a goal that follows from them, with the number of
tactics of its shortest plain proof. Never gives a problem of the other split.

Random hypotheses and a random goal are drawn until they are a theorem of the size asked
for; the prover and the search decide both exactly, so every problem can be won.
"""

import functools
import random
from collections.abc import Sequence
from typing import NamedTuple

from ragen_jax.host_games.common.options import check_whole
from ragen_jax.host_games.common.splits import check_split, split_of_hash, text_hash
from ragen_jax.host_games.lean.formulas import (
    AND,
    ATOMS,
    IFF,
    IMPLIES,
    NOT,
    OR,
    Formula,
    atom,
    canonical,
)
from ragen_jax.host_games.lean.prover import Prover, SearchGivenUp, script
from ragen_jax.host_games.lean.shortest_proof import ShortestProofs
from ragen_jax.host_games.lean.tactics import Goal, parse_tactic, run_tactic

MAX_HYPOTHESES = 3
# One class of problems in five is for validation.
VALIDATION_ONE_IN = 5
# How often a connective is drawn: implications most, as they are what chains are of.
_CONNECTIVES = ((IMPLIES, 0.4), (AND, 0.2), (OR, 0.2), (NOT, 0.13), (IFF, 0.07))
# Share of formulas that stay shallower than they may.
_STOP = 0.3

# Draws for the size asked for, and in all. At the defaults a problem needs about 50
# draws, seldom 1,000.
_DRAWS_OF_A_SIZE = 3_000
_DRAWS = 6_000
# Sizes up to which the search is quick: 8 tactics take milliseconds, 12 a second.
MOST_TACTICS = 10


class Problem(NamedTuple):
    """A theorem.

    Attributes:
      goal: hypotheses named `h1`, `h2`, ..., and what follows from them.
      tactics: length of its shortest proof in plain tactics.
    """

    goal: Goal
    tactics: int


def split_of(goal: Goal) -> str:
    """The split that a problem and all its renamings belong to."""
    text = canonical([formula for _, formula in goal.hypotheses], goal.target)
    return split_of_hash(text_hash(text), VALIDATION_ONE_IN)


class Problems:
    """A split's problems, one for each seed.

    Args:
      split: `training` or `validation`.
      max_depth: connectives inside one another, in hypotheses and goal; from 1 to 4.
      num_atoms: of p, q, r, s, how many may occur; from 1 to 4.
      min_tactics: fewest tactics of a shortest proof.
      max_tactics: most of them, at most `MOST_TACTICS`. Sizes in between are drawn
        equally often.

    Raises:
      ValueError: an option is out of range.
    """

    def __init__(
        self,
        split: str,
        *,
        max_depth: int,
        num_atoms: int,
        min_tactics: int,
        max_tactics: int,
    ) -> None:
        check_split(split)
        check_whole("max_depth", max_depth, most=4)
        check_whole("num_atoms", num_atoms, most=len(ATOMS))
        check_whole("max_tactics", max_tactics, most=MOST_TACTICS)
        check_whole("min_tactics", min_tactics, most=max_tactics)
        self.split = split
        self.max_depth = max_depth
        self.atoms = ATOMS[:num_atoms]
        self.sizes = range(min_tactics, max_tactics + 1)
        self._shortest = ShortestProofs(Prover())
        # Rows of a group play the same seed, often in the same process.
        self.problem = functools.lru_cache(maxsize=256)(self._problem)

    def _problem(self, seed: int) -> Problem:
        """The problem of a seed, the same in every process.

        Raises:
          ValueError: the options hardly leave any problem.
        """
        draw = random.Random(seed)
        wanted = self.sizes[int(draw.random() * len(self.sizes))]
        other = None
        for count in range(_DRAWS):
            goal = self._draw(draw)
            tactics = self._size(goal, self.sizes[-1] if other is None else wanted)
            if tactics == wanted:
                return Problem(goal, tactics)
            if other is None and tactics in self.sizes:
                other = Problem(goal, tactics)
            if count >= _DRAWS_OF_A_SIZE and other is not None:
                return other
        raise ValueError(
            f"no theorem of {self.sizes[0]} to {self.sizes[-1]} tactics in {_DRAWS} "
            f"draws with {len(self.atoms)} atoms and max_depth={self.max_depth}; use "
            "more atoms, a greater max_depth or a wider range of tactics."
        )

    def _draw(self, draw: random.Random) -> Goal:
        count = int(draw.random() * (MAX_HYPOTHESES + 1))
        given = dict.fromkeys(self._formula(draw, self.max_depth) for _ in range(count))
        named = tuple((f"h{i}", formula) for i, formula in enumerate(given, start=1))
        return Goal("", named, self._formula(draw, self.max_depth))

    def _formula(self, draw: random.Random, depth: int) -> Formula:
        if depth == 0 or draw.random() < _STOP:
            return atom(self.atoms[int(draw.random() * len(self.atoms))])
        op = _weighted(draw.random())
        first = self._formula(draw, depth - 1)
        return (op, first) if op == NOT else (op, first, self._formula(draw, depth - 1))

    def _size(self, goal: Goal, most: int) -> int | None:
        """Tactics of a goal's shortest proof; None: not a problem of this split."""
        formulas = [formula for _, formula in goal.hypotheses]
        if any(_says_nothing(formula) for formula in (*formulas, goal.target)):
            return None
        try:
            if self._shortest.prover.prove(formulas, goal.target) is None:
                return None
            if split_of(goal) != self.split:
                return None
            proof = self._shortest.find(goal, most)
        except SearchGivenUp:
            # Too hard to say, in the same way in every process: no problem to pose.
            return None
        return None if proof is None else len(proof)


def _weighted(share: float) -> str:
    for op, weight in _CONNECTIVES:
        share -= weight
        if share < 0:
            return op
    return _CONNECTIVES[0][0]


def _says_nothing(formula: Formula) -> bool:
    """Whether a connective joins a formula with itself, as `p ∧ p` and `p → p` do."""
    parts = [part for part in formula[1:] if isinstance(part, tuple)]
    if len(parts) == 2 and parts[0] == parts[1]:
        return True
    return any(_says_nothing(part) for part in parts)


def shortest_script(
    goal: Goal, played: Sequence[str], *, most: int, symbols: dict[str, str]
) -> tuple[str, ...]:
    """The fewest plain tactics that leave no goals, where that can be found quickly.

    Args:
      goal: the theorem.
      played: tactics so far, all accepted.
      most: tactics that may follow.
      symbols: for formulas in the script.

    Returns:
      The script, of the shortest proofs of all goals or, where a goal's is not found
      with `MOST_TACTICS`, of the prover's longer one; empty where a goal has no proof,
      where deciding that takes too long, and where it has more than `most` tactics.
    """
    goals = (goal,)
    for text in played:
        goals = run_tactic(goals, parse_tactic(text))
    prover = Prover()
    search = ShortestProofs(prover)
    lines: list[str] = []
    for left in goals:
        formulas = [formula for _, formula in left.hypotheses]
        try:
            proof = prover.prove(formulas, left.target)
        except SearchGivenUp:
            # What a player's `have` has brought in is too hard: nothing is known.
            return ()
        if proof is None:
            return ()
        try:
            shortest = search.find(left, min(MOST_TACTICS, most - len(lines)), symbols)
        except SearchGivenUp:
            shortest = None
        lines += shortest or script(left, proof, symbols)
    return tuple(lines) if len(lines) <= most else ()
