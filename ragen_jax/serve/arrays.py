"""Environments of arrays, served turn by turn in text.

In: an environment in chat messages (`rollout.chat.ChatGame`). Out: episodes whose
levels, turns, limits and words are those of training; what a turn shows is what an
evaluation over an API sends as that turn's message. The programs of one row are
compiled when the game is made, and all clients share them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from envs.base import SPLITS
from ragen_jax import rngs
from ragen_jax.rollout.chat import ChatGame
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import Answer, Play
from ragen_jax.serve.games import Game, GameError, Player, Shown, read_answer
from ragen_jax.text.answers import ANSWER_END
from ragen_jax.text.messages import parse_text
from ragen_jax.types import ParsedAnswer


class ArrayGame(Game):
    """An environment of arrays.

    Args:
      name: as clients read it.
      game: the environment, its rules and its wording.
    """

    def __init__(self, name: str, game: ChatGame):
        self.name, self.game = name, game
        self.instruction = game.chat.wording.system.render({})

        @jax.jit
        def keys(seed: Int[Array, ""]) -> tuple[Key[Array, " 1"], Key[Array, " 1"]]:
            root = rngs.root_key(seed)
            return tuple(
                rngs.rows(rngs.stream(root, name), 1) for name in ("level", "noise")
            )

        @jax.jit
        def advance(
            play: Play, turn: Int[Array, ""], parsed: ParsedAnswer, noise: Array
        ) -> tuple[Play, dict]:
            no = jnp.zeros(1, bool)
            answer = Answer(parsed, jnp.zeros(1, jnp.int32), no, no, jnp.zeros(1))
            play = game.step(play, turn, answer, noise)
            episode = game.finish(play, play.states, noise)
            seen = {
                "fields": game.fields(play, turn + 1),
                "feedback": play.feedback,
                "reward": play.turns.reward[0, turn],
                "is_active": play.is_active[0],
                "terminated": episode.terminated[0],
                "success": episode.success[0],
            }
            return play, seen

        self.keys, self.advance = keys, advance
        player = self.player()
        for split in SPLITS:
            player.reset(0, None, split)
        player.step("")

    def player(self) -> "ArrayPlayer":
        return ArrayPlayer(self)


class ArrayPlayer(Player):
    """Episodes of an `ArrayGame`."""

    def __init__(self, game: ArrayGame):
        self._game = game

    def reset(self, seed: int, task: int | None, split: str) -> Shown:
        if task is not None:
            raise GameError(
                f"there is no task {task}: levels of {self._game.name} are made from "
                "seeds; leave task out"
            )
        game = self._game.game
        level, self._noise = self._game.keys(np.uint32(seed))
        self._play = game.start(
            game.levels(RolloutKeys(level, self._noise, self._noise, split=split))
        )
        self._turn = 0
        fields = _only_row(jax.device_get(game.fields(self._play, np.int32(0))))
        wording = game.chat.wording
        text = f"{self._game.instruction}\n\n{wording.turn.render(fields)}"
        return Shown(text, game.env.template.render(fields).rstrip("\n"))

    def step(self, answer: str) -> Shown:
        game, wording = self._game.game, self._game.game.chat.wording
        parsed = parse_text(
            # A text with the tag in it would end there, as in training.
            read_answer(answer) + ANSWER_END.decode(),
            game.env.action_vocabulary,
            max_actions=game.rules.budget.max_actions_per_turn,
            thinking=False,
            answer_bytes=game.env.answer_bytes,
        )
        row = jax.tree.map(lambda x: np.asarray(x)[None], parsed)
        self._play, seen = self._game.advance(
            self._play, np.int32(self._turn), row, self._noise
        )
        self._turn += 1
        seen = jax.device_get(seen)
        fields, feedback = _only_row(seen["fields"]), _only_row(seen["feedback"])
        goes_on = bool(seen["is_active"]) and self._turn < game.rules.budget.max_turns
        shown = game.env.template.render(fields)
        rest = wording.turn.render(fields) if goes_on else shown
        terminated = bool(seen["terminated"])
        return Shown(
            wording.result.render(feedback) + rest,
            shown.rstrip("\n"),
            float(seen["reward"]),
            terminated=terminated,
            truncated=not goes_on and not terminated,
            success=bool(seen["success"]),
            valid=not feedback["was_invalid"],
        )


def _only_row(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value[0] for name, value in arrays.items()}
