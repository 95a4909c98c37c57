"""Games of TextArena: for one player, or for two with an opponent of the adapter's.

In: the id of a game and who the opponent is. Out: a `HostGame` that shows what the game
says to the policy's side since its last reply, and pays what the game pays that side.
The opponent's moves happen inside `reset` and `step`.

Which games can be played, and why the others cannot, is `textarena_games.py`'s; who may
play against the policy, `textarena_opponents.py`'s.

Source: textarena 0.7.4, as called. Its wrappers of what is shown repeat the whole
episode each turn, which here is the dialogue's business: they are taken off. Those of
actions, such as the one that puts brackets around a reply without any, are kept.
"""

import contextlib
import copy
import difflib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ragen_jax import install_command
from ragen_jax.host_games.adapters.common import (
    refuse_task,
    short_name,
    spread_seed,
)
from ragen_jax.host_games.adapters.textarena_games import find_game
from ragen_jax.host_games.adapters.textarena_opponents import (
    OpponentError,
    Position,
    build_expert,
    build_opponent,
)
from ragen_jax.host_games.base import TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.options import (
    check_bool,
    check_one_of,
)
from ragen_jax.host_games.common.splits import check_split

# The policy's side, where the seed chooses it.
BOTH = "both"
# In a row: some games go on with a side until it says that it has finished.
MAX_OPPONENT_MOVES = 200
# Episodes that an opponent may lose in a row before the policy's first reply.
MAX_BEGINNINGS = 10
# Of a demonstration: random moves do not end every game.
MAX_EXPERT_REPLIES = 100
# The best that a game for one player pays: it is solved, found, or won throughout.
_SOLVED = 1.0


class TextArenaGame(HostGame):
    """A game of TextArena, from one side.

    A reply is given to the game as it is, with brackets around it where the game's own
    wrappers add them. A first reply that the game cannot read is answered with what is
    wrong; a second one in a row mostly ends the game, as lost. `terminated` is any end:
    TextArena does not say which is a limit of turns.

    A success is, for one player, the full reward, 1; for two, a reward above the
    opponent's.

    Games draw from Python's global generator and NumPy's. Each game here has a state of
    its own of both, which is theirs only while the game runs, so that episodes are
    repeatable beside others in the same process. Where the seed chooses no problem, as
    in board games, the splits differ only in a random opponent's moves.
    """

    def __init__(
        self,
        split: str = TRAINING,
        *,
        id: str,
        make_kwargs: Mapping[str, Any] | None = None,
        player: int | str = 0,
        opponent: str | None = None,
        opponent_url: str | None = None,
        opponent_model: str | None = None,
        opponent_seconds: float | None = None,
        expert: str | None = None,
        show_rules: bool = True,
        instruction: str | None = None,
    ):
        """Makes the game, the opponent and the expert.

        Args:
          split: one of `SPLITS`; training has even seeds, validation odd ones.
          id: of `textarena.make`.
          make_kwargs: further arguments of `textarena.make`.
          player: the policy's side in games for two: 0, 1, or "both": that of the
            seed's parity.
          opponent: in games for two, "random": any legal move; or package.module:name
            of a function that gets all that the game has said to its side in this
            episode and returns a reply. None: "random", or the model at `opponent_url`.
          opponent_url, opponent_model: of an API like OpenAI's, without
            /chat/completions, and the name of the model there that is the opponent.
          opponent_seconds: in which the opponent must answer; None: 30.
          expert: who demonstrates for the policy's side, "random" or a function, as
            `opponent`; None: nobody. Its replies are a `solution` where they win.
          show_rules: the first observation begins with the game's own prompt. Some
            games say only there what the problem is.
          instruction: said before everything; None: the id and how to reply.

        Raises:
          ImportError: textarena is not installed.
          ValueError: an option is wrong, or the game cannot be played here.
        """
        check_split(split)
        check_one_of("player", player, (0, 1, BOTH))
        check_bool("show_rules", show_rules)
        self._split, self._id, self._name = split, id, short_name(id)
        self._kwargs, self._side = _check_kwargs(make_kwargs), player
        self._show_rules = show_rules
        self._library = _import_textarena()
        game = find_game(id, _find_folder(self._library, id))
        self._num_players = game.num_players
        self._random = _OwnRandomness()
        # What is wrong with the arguments shows here, not in a worker.
        with self._random.running():
            self._make()
        if instruction is None:
            instruction = f"You are playing {id}, a game of TextArena. {self._form()}"
        self.instruction = instruction
        self._expert = build_expert(id, game, expert, opponent_url)
        self._opponent = build_opponent(
            id,
            game,
            player=player,
            opponent=opponent,
            opponent_url=opponent_url,
            opponent_model=opponent_model,
            opponent_seconds=opponent_seconds,
            instruction=instruction,
        )
        if self._opponent is not None:
            self.waits = self._opponent.waits
            self.max_step_seconds = self._opponent.max_reply_seconds
            self.metrics = ("opponent_invalid",)

    @property
    def name(self) -> str:
        return self._name

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Begin an episode; there are no tasks."""
        refuse_task(task)
        own_seed = spread_seed(self._split, seed)
        self._player = seed % 2 if self._side == BOTH else self._side
        # An opponent that moves at random may lose before the first reply, which would
        # then be paid for nothing.
        for attempt in range(MAX_BEGINNINGS):
            self._begin(own_seed + attempt)
            if not self._state.done:
                return Observation(self._take_news(self._player))
        raise OpponentError(
            f"{MAX_BEGINNINGS} episodes in a row were over before the first reply: the "
            f"opponent has lost them (the last by {self._num_opponent_invalid} invalid "
            f"replies); use one that knows how {self._id} is played"
        )

    def _begin(self, own_seed: int) -> None:
        """Begin an episode, and play it up to the policy's turn or its end."""
        self._news: list[list[tuple]] = [[] for _ in range(self._num_players)]
        # What each side has been told, text by text.
        self._told: list[list[str]] = [[] for _ in range(self._num_players)]
        self._num_opponent_invalid = 0
        self._random.seed(own_seed)
        with self._random.running():
            # A new one: some keep what they drew, such as a shuffled deck.
            self._make()
            self._env.reset(num_players=self._num_players, seed=own_seed)
            for player in filter(None, (self._opponent, self._expert)):
                player.reset(own_seed)
            self._collect()
            self._let_opponent_play()

    def step(self, reply: str) -> Step:
        """Give a reply to the game, and let the opponent answer."""
        with self._random.running():
            is_valid = self._answer(reply)
        is_over = self._state.done
        rewards = self._state.rewards if is_over else None
        info = {"success": self._is_won, "valid": is_valid}
        if self._opponent is not None:
            info["opponent_invalid"] = self._num_opponent_invalid
        return Step(
            observation=Observation(self._take_news(self._player)),
            reward=rewards[self._player] if is_over else 0.0,
            terminated=is_over,
            truncated=False,
            info=info,
        )

    def solution(self) -> tuple[str, ...]:
        """The expert's replies, where they win against the moves to come."""
        if self._expert is None or self._state.done:
            return ()
        game, replies = self._copied(), []
        with game._random.running():
            while not game._state.done and len(replies) < MAX_EXPERT_REPLIES:
                replies.append(game._expert.reply(game._position(game._player)))
                game._answer(replies[-1])
                game._take_news(game._player)
        return tuple(replies) if game._is_won else ()

    def _copied(self) -> "TextArenaGame":
        """This episode, to be played on beside it."""
        game = copy.copy(self)
        for name in ("_random", "_env", "_opponent", "_expert", "_news", "_told"):
            setattr(game, name, copy.deepcopy(getattr(self, name)))
        return game

    @property
    def _is_won(self) -> bool:
        return self._state.done and self._is_success(self._state.rewards)

    @property
    def _state(self) -> Any:
        return self._env.state

    def _make(self) -> None:
        """Makes the environment, and takes its wrappers off."""
        env = self._library.make(self._id, **self._kwargs)
        self._actions = []
        while isinstance(env, self._library.Wrapper):
            if isinstance(env, self._library.ActionWrapper):
                self._actions.append(env.action)
            env = env.env
        self._env = env

    def _form(self) -> str:
        """How a reply is written, for the instruction."""
        if self._write("x") == "[x]":
            return (
                "Reply with your move as the game describes it; brackets around it may "
                "be left out."
            )
        return "Reply as the game describes it, with its brackets."

    def _write(self, reply: str) -> str:
        for action in self._actions:
            reply = action(reply)
        return reply

    def _act(self, env: Any, reply: str) -> bool:
        """Gives a reply to an environment; whether that could read it."""
        player, num_errors = env.state.current_player_id, env.state.error_count
        env.step(self._write(reply))
        was_refused = env.state.error_count > num_errors
        return not (was_refused or env.state.game_info[player]["invalid_move"])

    def _answer(self, reply: str) -> bool:
        """Gives the policy's reply, and lets the opponent play; whether it was read."""
        is_valid = self._act(self._env, reply)
        self._collect()
        self._let_opponent_play()
        return is_valid

    def _position(self, side: int) -> Position:
        told = self._told[side]
        said = "\n".join(filter(None, told))
        return Position(told[-1], said, self._env, self._is_legal)

    def _is_legal(self, reply: str) -> bool:
        """Whether the side to move could give a reply; nothing happens."""
        # The log of the whole episode, which grows, decides nothing.
        without_log = {id(self._state.logs): []}
        with self._random.kept():
            return self._act(copy.deepcopy(self._env, without_log), reply)

    def _let_opponent_play(self) -> None:
        """The opponent's moves, until it is the policy's turn or the end."""
        num_moves = 0
        while not self._state.done and self._state.current_player_id != self._player:
            num_moves += 1
            if num_moves > MAX_OPPONENT_MOVES:
                raise OpponentError(
                    f"the opponent has moved {MAX_OPPONENT_MOVES} times in a row, and "
                    f"{self._id} asks it again; use an opponent that ends its turn"
                )
            self._take_news(1 - self._player)
            reply = self._opponent.reply(self._position(1 - self._player))
            is_valid = self._act(self._env, reply)
            self._num_opponent_invalid += not is_valid
            self._collect()

    def _collect(self) -> None:
        """Takes over what the environment has told each side since the last call."""
        board = self._library.ObservationType.GAME_BOARD
        for side, news in enumerate(self._news):
            if side == self._state.current_player_id and not self._state.done:
                # Some add the round and the like when they are asked.
                _, told = self._env.get_observation()
            else:
                told = self._state.observations[side]
                self._state.observations[side] = []
            # A board that was never shown is of no use beside a newer one.
            if any(kind is board for _, _, kind in told):
                news[:] = [message for message in news if message[2] is not board]
            news += told

    def _take_news(self, side: int) -> str:
        """What a side has been told since the last call, as a text."""
        kinds = self._library.ObservationType
        lines = []
        for sender, text, kind in self._news[side]:
            # A player knows what it has said.
            if kind is kinds.PLAYER_ACTION and sender == side:
                continue
            if kind is kinds.PROMPT and side == self._player and not self._show_rules:
                continue
            if sender != self._library.GAME_ID:
                role = self._state.role_mapping.get(sender, f"Player {sender}")
                text = f"[{role}] {text}"
            lines.append(text.strip("\n"))
        self._news[side] = []
        if self._state.done and self._state.game_info[side].get("reason"):
            lines.append(self._state.game_info[side]["reason"])
        self._told[side].append("\n".join(lines))
        return self._told[side][-1]

    def _is_success(self, rewards: Mapping[int, float]) -> bool:
        reward = rewards[self._player]
        if self._num_players == 1:
            return reward >= _SOLVED
        return reward > rewards[1 - self._player]


class _OwnRandomness:
    """States of the global generators that belong to one game.

    Games draw from `random` and `numpy.random`, which all rows of a process share.
    """

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Begins anew."""
        own = random.Random(seed).getstate()
        self._states = own, np.random.RandomState(seed).get_state()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Makes its states the global ones, as they were left."""
        others = _get_states()
        _set_states(self._states)
        try:
            yield
        finally:
            self._states = _get_states()
            _set_states(others)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Undoes what is drawn, while it is running."""
        states = _get_states()
        try:
            yield
        finally:
            _set_states(states)


def _get_states() -> tuple:
    return random.getstate(), np.random.get_state()


def _set_states(states: tuple) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


def _import_textarena() -> Any:
    try:
        import textarena
    except ModuleNotFoundError as error:
        raise ImportError(
            "games of TextArena need the package textarena: "
            + install_command("textarena")
        ) from error
    return textarena


def _find_folder(library: Any, id: str) -> str:
    """Where the class of a game is, in `textarena.envs`."""
    known = library.envs.registration.ENV_REGISTRY
    if id not in known:
        near = difflib.get_close_matches(str(id), known)
        raise ValueError(
            f"id is {id!r}, which textarena does not have; use one of "
            f"{', '.join(near) or 'textarena.pprint_registry_detailed()'}"
        )
    return known[id].entry_point.split(".")[2]


def _check_kwargs(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"make_kwargs is {given!r}; use a mapping from names of arguments to values"
        )
    return given
