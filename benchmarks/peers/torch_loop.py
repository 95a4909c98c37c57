"""StarPO as one would write it today: transformers, PyTorch and games in Python.

Our own, plain, and as fast as we know how without another sampler: `generate` over the
whole batch, messages padded on the left, keys and values kept over the turns (reading
the dialogue anew before every reply takes longer), finished rows left out of the next
turn, sampled log-probabilities taken from the logits that `generate` returns instead of
another forward pass. The levels are given: making them costs the peer nothing.
"""

import dataclasses
import pathlib
import time

import numpy as np
import torch
from ml_collections import ConfigDict
from transformers import AutoTokenizer, DynamicCache

from benchmarks.peers import python_sokoban
from benchmarks.peers.python_sokoban import Sokoban
from benchmarks.peers.torch_learner import Episodes, TorchLearner
from ragen_jax.types import Trajectory


@dataclasses.dataclass
class _Row:
    """An episode in progress."""

    game: Sokoban
    actions_left: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    mask: list[bool] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    reward: float = 0.0
    penalty: float = 0.0
    last: dict = dataclasses.field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        return self.actions_left > 0 and not self.game.is_solved

    def extend(self, tokens, log_probs, *, is_sampled: bool) -> None:
        self.tokens += tokens
        self.mask += [is_sampled] * len(tokens)
        self.log_probs += log_probs


class TorchLoop:
    """A policy that plays and learns.

    Attributes:
      learner: the networks.
      seconds: of the last iteration, by stage: "generate", "games", "update".
      success: of its episodes, a bool per row.
    """

    def __init__(
        self, folder: pathlib.Path, config: ConfigDict, *, is_forced: bool = False
    ):
        """Args:
        folder: the checkpoint, in Hugging Face layout.
        config: of a ragen_jax run; see `TorchLearner` for what is refused.
        is_forced: every reply has `rollout.max_reply_tokens` tokens.
        """
        torch.manual_seed(config.seed)
        self.learner = TorchLearner(folder, config)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._stop = self._tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._config, self._is_forced = config, is_forced
        self._rng = np.random.default_rng(config.seed)
        self.seconds: dict[str, float] = {}
        self.success: np.ndarray | None = None

    def iterate(
        self, games: list[Sokoban], openings: list[list[int]] | None = None
    ) -> None:
        """A rollout and an update; `games` has an entry per row.

        openings: the first message of each row; None: the pocket model's.
        """
        began = time.perf_counter()
        episodes = self.collect(games, openings)
        middle = time.perf_counter()
        self.learner.update(episodes, self._rng.permutation(len(games)))
        self.seconds["games"] = middle - began - self.seconds["generate"]
        self.seconds["update"] = time.perf_counter() - middle

    def collect(
        self, games: list[Sokoban], openings: list[list[int]] | None = None
    ) -> Episodes:
        """Plays every game to its end; see `iterate`."""
        budget = self._config.rollout
        rows = [_Row(game, budget.max_actions_per_episode) for game in games]
        self.seconds["generate"] = 0.0
        read = _Read(self.learner.policy, self.learner.num_ids)
        active = rows
        for turn in range(1, budget.max_turns + 1):
            read.keep([row.is_active for row in active])
            active = [row for row in active if row.is_active]
            if not active:
                break
            if turn == 1 and openings is not None:
                messages = openings
            else:
                texts = [self._message(row, turn) for row in active]
                read_text = self._tokenizer(texts, add_special_tokens=False)
                messages = read_text["input_ids"]
            for row, message in zip(active, messages, strict=True):
                row.extend(message, [0.0] * len(message), is_sampled=False)
            began = time.perf_counter()
            with self.learner.in_dtype():
                replies = read.reply(
                    messages,
                    stop=self._stop,
                    min_tokens=budget.max_reply_tokens if self._is_forced else 0,
                    max_tokens=budget.max_reply_tokens,
                    temperature=budget.temperature,
                )
            self.seconds["generate"] += time.perf_counter() - began
            texts = self._tokenizer.batch_decode(
                [tokens for tokens, _ in replies], skip_special_tokens=True
            )
            for row, reply, text in zip(active, replies, texts, strict=True):
                row.extend(*reply, is_sampled=True)
                self._act(row, text, was_cut=reply[0][-1] != self._stop)
        self.success = np.array([row.game.is_solved for row in rows])
        return _episodes(rows)

    def _message(self, row: _Row, turn: int) -> str:
        now = row.game.picture(), row.actions_left
        if turn == 1:
            return python_sokoban.opening(*now)
        return python_sokoban.following(turn, *now, **row.last)

    def _act(self, row: _Row, text: str, *, was_cut: bool) -> None:
        budget, reward = self._config.rollout, 0.0
        actions, is_punished = python_sokoban.read_answer(
            text, budget.max_actions_per_turn
        )
        for action in actions[: row.actions_left]:
            reward += row.game.step(action)
            row.actions_left -= 1
            if row.game.is_solved:
                break
        row.reward += reward
        row.penalty += budget.format_penalty * is_punished
        row.last = {
            "reward": reward,
            "was_invalid": not actions,
            "was_cut": was_cut,
        }


class _Read:
    """What `generate` has read: ids, which of them count, keys and values."""

    def __init__(self, policy, num_ids: int | None):
        self._policy, self._num_ids = policy, num_ids
        ids = range(policy.config.vocab_size)
        self._spare_ids = None if num_ids is None else list(ids[num_ids:]) or None
        self._cache = DynamicCache(config=policy.config)
        self._ids: torch.Tensor | None = None
        self._mask: torch.Tensor | None = None

    def keep(self, is_kept: list[bool]) -> None:
        if self._ids is None or all(is_kept):
            return
        index = torch.as_tensor(np.flatnonzero(is_kept), device=self._ids.device)
        self._ids, self._mask = self._ids[index], self._mask[index]
        self._cache.batch_select_indices(index)

    def reply(
        self,
        messages: list[list[int]],
        *,
        stop: int,
        min_tokens: int,
        max_tokens: int,
        temperature: float,
    ) -> list[tuple[list[int], list[float]]]:
        """Read a message per row; sampled tokens and their log-probabilities."""
        width = max(map(len, messages))
        ids = torch.tensor([[0] * (width - len(m)) + m for m in messages])
        mask = torch.tensor([[0] * (width - len(m)) + [1] * len(m) for m in messages])
        ids, mask = ids.to(self._policy.device), mask.to(self._policy.device)
        if self._ids is not None:
            ids = torch.cat([self._ids, ids], dim=1)
            mask = torch.cat([self._mask, mask], dim=1)
        with torch.no_grad():
            told = self._policy.generate(
                ids,
                attention_mask=mask,
                past_key_values=self._cache,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                min_new_tokens=min_tokens or None,
                max_new_tokens=max_tokens,
                eos_token_id=stop,
                pad_token_id=0,
                suppress_tokens=self._spare_ids,
                return_dict_in_generate=True,
                output_logits=True,
            )
        tokens = told.sequences[:, ids.shape[1] :]
        logits = torch.stack(told.logits, dim=1).float()[..., : self._num_ids]
        log_probs = torch.log_softmax(logits / temperature, -1)
        log_probs = log_probs.gather(-1, tokens[..., None])[..., 0]
        # Tokens after a row's stop token are padding.
        ended = (tokens == stop).cumsum(1) - (tokens == stop).int() > 0
        self._ids = told.sequences
        self._mask = torch.cat([mask, (~ended).to(mask.dtype)], dim=1)
        counts = (~ended).sum(1).tolist()
        return [
            (row[:count], own[:count])
            for row, own, count in zip(
                tokens.tolist(), log_probs.tolist(), counts, strict=True
            )
        ]


def _episodes(rows: list[_Row]) -> Episodes:
    width = max(len(row.tokens) for row in rows)

    def pad(values, dtype):
        return np.array([v + [0] * (width - len(v)) for v in values], dtype)

    rewards = np.array([row.reward for row in rows], np.float32)
    return Episodes(
        tokens=pad([row.tokens for row in rows], np.int64),
        lengths=np.array([len(row.tokens) for row in rows]),
        mask=pad([row.mask for row in rows], bool),
        sample_log_probs=pad([row.log_probs for row in rows], np.float32),
        rewards=rewards,
        totals=rewards + np.array([row.penalty for row in rows], np.float32),
    )


def first_messages(rollout: Trajectory) -> list[list[int]]:
    """Tokens of each row before its first reply, of an episode of ragen_jax."""
    tokens, is_reply = np.asarray(rollout.tokens), np.asarray(rollout.loss_mask)
    starts = is_reply.argmax(axis=1)
    return [row[:start].tolist() for row, start in zip(tokens, starts, strict=True)]


def games_from(state, cols: int) -> list[Sokoban]:
    """Games at the levels of our `EnvState` (leading axis: rows)."""
    arrays = (state.walls, state.targets, state.boxes, state.player)
    walls, targets, boxes, player = (np.asarray(x) for x in arrays)
    return [
        Sokoban(
            np.flatnonzero(walls[i]).tolist(),
            np.flatnonzero(targets[i]).tolist(),
            boxes[i].tolist(),
            int(player[i]),
            cols,
        )
        for i in range(len(player))
    ]
