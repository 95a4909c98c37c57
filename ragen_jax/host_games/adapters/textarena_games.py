"""Which games of TextArena can be played, and the replies that may be moves in them.

In: the folder of a game in `textarena.envs`. Out: its number of players and, for two,
texts among which all its legal moves are; or a sentence why it cannot be played here.

Source: every id that textarena 0.7.4 registers, tried. What is listed as playable
repeats by its seed in other processes, answers any text, ends and pays.
"""

import dataclasses
import itertools
import random
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

# What a random player may try: of the environment, what it has just been told, and a
# generator for games whose moves are too many to list.
Moves = Callable[[Any, str, random.Random], Iterable[str]]

# Ids of a game differ by these in what they show and in nothing else.
VARIANTS = ("-raw", "-train")


@dataclasses.dataclass(frozen=True)
class Game:
    """A game that can be played.

    Attributes:
      num_players: 1 or 2.
      moves: texts, legal moves among them; None: a random player is not possible.
    """

    num_players: int
    moves: Moves | None = None


def _texts(*texts: str) -> Moves:
    return lambda env, shown, draw: texts


def _told(env: Any, shown: str, draw: random.Random) -> list[str]:
    """What stands in brackets in what the player has been told."""
    return re.findall(r"\[[^\[\]\n]{1,40}\]", shown)


def _cells(size: Callable[[Any], int]) -> Moves:
    """[0], [1], ... below a number."""
    return lambda env, shown, draw: [f"[{i}]" for i in range(size(env))]


def _steps(
    form: str, files: str, ranks: str, fits: Callable[[int, int], bool]
) -> Moves:
    """From a square to another one, where the files and ranks between them fit."""
    squares = list(itertools.product(range(len(files)), range(len(ranks))))
    texts = [
        form.format(files[f] + ranks[r], files[g] + ranks[s])
        for (f, r), (g, s) in itertools.permutations(squares, 2)
        if fits(abs(f - g), abs(r - s))
    ]
    return _texts(*texts)


def _is_near(across: int, along: int) -> bool:
    return max(across, along) <= 2


def _is_knights(across: int, along: int) -> bool:
    return {across, along} == {1, 2}


def _is_straight(across: int, along: int) -> bool:
    return across == along or 0 in (across, along)


def _breakthrough(env, shown, draw):
    size = env.board_size
    files, ranks = "abcdefghijklmnopqrstuvwxyz"[:size], range(1, size + 1)
    return [
        f"[{files[f]}{rank}{files[f + side]}{rank + ahead}]"
        for f, rank, side, ahead in itertools.product(
            range(size), ranks, (-1, 0, 1), (-1, 1)
        )
        if 0 <= f + side < size and rank + ahead in ranks
    ]


def _checkers(env, shown, draw):
    squares = itertools.product(range(8), range(8))
    return [
        f"[{row} {column} {row + down} {column + right}]"
        for row, column in squares
        for down, right in itertools.product((-2, -1, 1, 2), repeat=2)
        if abs(down) == abs(right)
    ]


def _blotto(env, shown, draw):
    """One allocation, each as probable as any other."""
    names, units = env.field_names, env.num_total_units
    places = units + len(names) - 1
    bars = sorted(draw.sample(range(places), len(names) - 1))
    ends = zip([-1, *bars], [*bars, places], strict=True)
    shares = [after - before - 1 for before, after in ends]
    pairs = zip(names, shares, strict=True)
    return ["[" + ", ".join(f"{name}:{share}" for name, share in pairs) + "]"]


def _chopsticks(env, shown, draw):
    hands = [f"[attack {i} {j}]" for i, j in itertools.product(range(2), repeat=2)]
    return hands + [
        f"[split {left} {right}]"
        for left, right in itertools.product(range(9), repeat=2)
    ]


def _golf(env, shown, draw):
    places = itertools.product(range(env.num_rows), range(env.num_columns))
    return ["[draw]", "[take]", "[discard]", *(f"[swap {r} {c}]" for r, c in places)]


def _liars_dice(env, shown, draw):
    bids = itertools.product(range(1, 2 * env.num_dice + 1), range(1, 7))
    return ["[Call]", *(f"[Bid: {number}, {face}]" for number, face in bids)]


def _memory(env, shown, draw):
    cards = itertools.product(range(env.grid_size), repeat=2)
    return [f"[{a} {b} {c} {d}]" for (a, b), (c, d) in itertools.combinations(cards, 2)]


def _nim(env, shown, draw):
    piles = enumerate(env.state.game_state["piles"])
    return [f"[{i} {n}]" for i, left in piles for n in range(1, left + 1)]


def _pairs(form: str, first: Iterable, second: Iterable) -> Moves:
    texts = [form.format(a, b) for a, b in itertools.product(first, second)]
    return _texts(*texts)


def _squares_of(form: str, size: str, letters: str | None = None) -> Moves:
    """Squares of a board whose size is an attribute of the environment."""

    def moves(env, shown, draw):
        numbers = range(getattr(env, size))
        rows = numbers if letters is None else [letters[i] for i in numbers]
        return [form.format(row, column) for row in rows for column in numbers]

    return moves


_DIRECTIONS = _texts("[up]", "[down]", "[left]", "[right]")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# Folder in `textarena.envs` -> what can be played.
GAMES: dict[str, Game] = {
    **dict.fromkeys(
        (
            "Bandit",
            "Blackjack",
            "Crosswords",
            "FifteenPuzzle",
            "FrozenLake",
            "Game2048",
            "GuessTheNumber",
            "LightsOut",
            "LogicPuzzle",
            "Mastermind",
            "Minesweeper",
            "PegJump",
            "Secretary",
            "Set",
            "Sokoban",
            "Sudoku",
            "TowerOfHanoi",
            "UltimateTexasHoldem",
        ),
        Game(1),
    ),
    "Alquerque": Game(2, _steps("[{} {}]", "abcde", "12345", _is_near)),
    "Battleship": Game(2, _squares_of("[{}{}]", "grid_size", _ALPHABET)),
    "Breakthrough": Game(2, _breakthrough),
    "Briscola": Game(2, _texts("[play 1]", "[play 2]", "[play 3]")),
    "Checkers": Game(2, _checkers),
    "Chess": Game(
        2,
        lambda env, shown, draw: [
            f"[{move.uci()}]" for move in env.state.game_state["board"].legal_moves
        ],
    ),
    "Chopsticks": Game(2, _chopsticks),
    "ColonelBlotto": Game(2, _blotto),
    "ConnectFour": Game(
        2, lambda env, shown, draw: [f"[col {i}]" for i in range(env.num_cols)]
    ),
    "Crusade": Game(2, _steps("[{} {}]", "abcdefgh", "12345678", _is_knights)),
    "GameOfPureStrategy": Game(
        2, _texts(*(f"[{card}]" for card in ("a", *range(2, 11), "j", "q", "k")))
    ),
    "GermanWhist": Game(2, _texts(*(f"[play {i}]" for i in range(1, 14)))),
    "Golf": Game(2, _golf),
    "IndianPoker": Game(
        2,
        _texts(
            "[check]",
            "[call]",
            "[fold]",
            *(f"[{verb} {n}]" for verb in ("bet", "raise") for n in (1, 2, 5, 10)),
        ),
    ),
    "IteratedMatchingPennies": Game(2, _texts("[heads]", "[tails]")),
    "IteratedPrisonersDilemma": Game(2, _texts("[Cooperate]", "[Defect]")),
    "IteratedRockPaperScissors": Game(2, _texts("[rock]", "[paper]", "[scissors]")),
    "IteratedStagHunt": Game(2, _texts("[Stag]", "[Hare]")),
    "IteratedTwoThirdsAverage": Game(2, _cells(lambda env: 101)),
    "IteratedUltimatumGame": Game(
        2,
        lambda env, shown, draw: [
            "[Accept]",
            "[Reject]",
            *(f"[Offer: ${i}]" for i in range(env.pool + 1)),
        ],
    ),
    "KuhnPoker": Game(2, _texts("[check]", "[bet]", "[call]", "[fold]")),
    "LiarsDice": Game(2, _liars_dice),
    "LinesOfAction": Game(2, _steps("[{}{}]", "abcdefgh", "12345678", _is_straight)),
    "MemoryGame": Game(2, _memory),
    "NewRecruit": Game(2),
    "Nim": Game(2, _nim),
    "Othello": Game(2, _squares_of("[{}, {}]", "N")),
    "PigDice": Game(2, _texts("[roll]", "[hold]")),
    "QuantumTicTacToe": Game(
        2, _texts(*(f"[{a},{b}]" for a, b in itertools.combinations(range(9), 2)))
    ),
    "ReverseTicTacToe": Game(2, _cells(lambda env: 9)),
    "SimpleBlindAuction": Game(2),
    "SimpleNegotiation": Game(2),
    "SimpleTak": Game(2, _cells(lambda env: env.board_size**2)),
    "Snake": Game(2, _DIRECTIONS),
    "Stratego": Game(2, _told),
    "Surround": Game(2, _DIRECTIONS),
    "Tak": Game(2),
    "TicTacToe": Game(2, _cells(lambda env: 9)),
    "TruthAndDeception": Game(2),
    "TwoDollar": Game(2),
    "UltimateTicTacToe": Game(2, _pairs("[{} {}]", range(9), range(9))),
    "WildTicTacToe": Game(2, _pairs("[{} {}]", "XO", range(9))),
}

_JURY = "asks models of OpenRouter, with a key of theirs, to answer or to judge"
_WORDS = "downloads lists of words with nltk when it is made"
_MANY = "is for more than two players"
_FILES = "reads files that the package does not contain"
_SLOW = "may take minutes to draw a problem"
_ENDLESS = "does not always end"
_TEXT_PAID = "pays a text, not a number, for replies that it cannot read"
# Folder, or id where only some of a game's ids are meant -> why not.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"), _JURY
    ),
    **dict.fromkeys(
        (
            "Codenames",
            "DontSayIt",
            "Hangman",
            "LetterAuction",
            "SpellingBee",
            "WordChains",
            "WordLadder",
            "WordSearch",
            "Wordle",
        ),
        _WORDS,
    ),
    **dict.fromkeys(
        (
            "CharacterConclave",
            "MarketEntryGame",
            "PublicGoodsGame",
            "SecretMafia",
            "SettlersOfCatan",
            "Taboo",
            "ThreePlayerGOPS",
            "ThreePlayerIPD",
            "ThreePlayerTicTacToe",
        ),
        _MANY,
    ),
    **dict.fromkeys(("ScorableGames", "UsedCar", "UsedCarNegotiation"), _FILES),
    **dict.fromkeys(("RushHour", "Sudoku-v0-hard", "Sokoban-v0-medium"), _SLOW),
    **dict.fromkeys(("HighSociety", "Poker", "Santorini", "SpiteAndMalice"), _ENDLESS),
    **dict.fromkeys(
        ("Countdown", "Cryptarithm", "Slitherlink", "ThreeCardMonte"), _TEXT_PAID
    ),
    "BabyAiText": "needs the package gym, which Gymnasium has replaced",
    "Klondike": "is not valid Python in textarena 0.7.4",
}
# Their files are not valid Python before it.
_NEED_PYTHON_3_12 = frozenset(
    {
        "Checkers",
        "Chess",
        "IteratedStagHunt",
        "ReverseTicTacToe",
        "UltimateTexasHoldem",
    }
)


def find_game(id: str, folder: str) -> Game:
    """What is known of a game.

    Args:
      id: of `textarena.make`.
      folder: where its class is, in `textarena.envs`.

    Raises:
      ValueError: it cannot be played, and why.
    """
    plain = id
    for variant in VARIANTS:
        plain = plain.removesuffix(variant)
    reason = REFUSED.get(folder, REFUSED.get(plain))
    if reason is None and folder not in GAMES:
        reason = "is not among those that have been tried with this adapter"
    if reason is None and folder in _NEED_PYTHON_3_12 and sys.version_info < (3, 12):
        reason = "needs Python 3.12 or later"
    if reason is not None:
        raise ValueError(
            f"textarena:{id} cannot be played: it {reason}; choose one of "
            f"{', '.join(sorted(GAMES))}"
        )
    return GAMES[folder]
