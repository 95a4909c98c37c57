"""The rollout as one would write it on the host: a Python loop over turns, in strings.

Text is rendered and tokenized on the host, answers are read by the regex oracle, games
are stepped one row at a time. Only the network is shared with the compiled rollout: the
same `read` and `decode_step`, jitted on their own, with the same shapes. Where the
model sees windows of the dialogue they are written by `windows_oracle`, from recorded
ids and rendered strings.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.models.kv_cache import grow_cache, init_cache
from ragen_jax.rollout.decode import (
    Context,
    Decoding,
    decode_step,
    read,
    read_in_chunks,
)
from ragen_jax.rollout.sampling import sample
from ragen_jax.types import TokenSpan, Trajectory, Turns, Windows
from tests.reference import state_hash_oracle, windows_oracle
from tests.reference.answer_oracle import parse_reply


class RolloutLoop:
    """Plays `num_groups * group_size` rows; see `make_collect` for the settings."""

    def __init__(
        self,
        env,
        env_params,
        policy,
        dialogue,
        tokenizer,
        *,
        budget,
        max_reply_tokens,
        format_penalty,
        temperature,
        top_k=None,
        top_p=None,
        write_window=None,
        bonus=None,
    ):
        """The last two are slow, too.

        `write_window(told) -> pieces`: see `windows_oracle`; None: no windows.
        `bonus(reply, has_format, num_tokens, boards) -> float`, the boards before and
        after the turn; None: none.
        """
        self.env, self.env_params, self.policy = env, env_params, policy
        self.dialogue, self.tokenizer = dialogue, tokenizer
        self.budget, self.max_reply_tokens = budget, max_reply_tokens
        self.format_penalty = format_penalty
        self.write_window, self.bonus = write_window, bonus
        sampler = functools.partial(
            sample, temperature=temperature, top_k=top_k, top_p=top_p
        )
        self._read = jax.jit(functools.partial(read, policy))
        # In pieces of the compiled rollout: others round differently.
        width = dialogue.opening.max_tokens
        num_pieces = width // (width - dialogue.opening.num_common)
        pieces = Decoding(None, None, 0, 0, read_chunk_tokens=-(-width // num_pieces))
        self._read_shared = jax.jit(
            functools.partial(read_in_chunks, policy, decoding=pieces)
        )
        self._step = jax.jit(functools.partial(decode_step, policy, sampler=sampler))
        self._fold = jax.jit(jax.vmap(jax.random.fold_in, (0, None)))
        self._reset = jax.jit(env.reset_env)
        self._is_held_out = jax.jit(env.is_held_out)
        self._env_step = jax.jit(env.step_env)
        self._is_over = jax.jit(
            lambda state: (
                env.is_terminated(state, env_params)
                | env.is_truncated(state, env_params)
            )
        )
        self._fields = jax.jit(env.text_fields)
        self._names = jax.jit(env.action_names)
        self._stops = set(np.asarray(dialogue.stop_tokens).tolist())

    def collect(self, params, keys) -> Trajectory:
        """A trajectory of NumPy arrays."""
        num_rows = keys.noise.shape[0]
        self._group_size = group_size = num_rows // keys.level.shape[0]
        resets = [self._level(key, keys.split) for key in keys.level]
        rows = [_Row(resets[i // group_size], self.budget) for i in range(num_rows)]
        context = Context(
            init_cache(self.policy.config, num_rows, 0, self.policy.dtype),
            jnp.zeros((num_rows, self.policy.config.hidden_size), self.policy.dtype),
        )
        for turn in range(self.budget.max_turns):
            active = [row for row in rows if row.is_active]
            if not active:
                break
            context = self._tell(params, context, rows, turn)
            turn_keys = self._fold(keys.sample, turn)
            context = self._reply(params, context, rows, turn_keys)
            for i, row in enumerate(rows):
                if row.is_active:
                    self._act(row, turn, jax.random.fold_in(keys.noise[i], turn))
        trajectory = self._trajectory(rows)
        return trajectory.replace(noise_key=np.asarray(jax.random.key_data(keys.noise)))

    def _tell(self, params, context, rows, turn):
        compiled = self.dialogue
        width = (compiled.opening if turn == 0 else compiled.following).max_tokens
        if turn > 0 and self.write_window is not None:
            width = compiled.max_window_tokens - self.max_reply_tokens
        tokens = np.zeros((len(rows), width), np.int32)
        lengths = np.zeros(len(rows), np.int32)
        starts = np.zeros(len(rows), np.int32)
        for i, row in enumerate(rows):
            if not row.is_active:
                continue
            starts[i], prompt = self._message(row, turn)
            tokens[i, : len(prompt)] = prompt
            lengths[i] = len(prompt)
            row.num_read = starts[i] + len(prompt)
        slots = compiled.max_window_tokens + 1
        # The rows of a level are told the same: the first message is read once.
        once = self._group_size if turn == 0 else 1
        room = width if turn == 0 else slots
        context = context.replace(cache=grow_cache(context.cache, room))
        context = jax.tree.map(lambda x: x[::once], context)
        span = TokenSpan(tokens[::once], lengths[::once])
        read_now = self._read if once == 1 else self._read_shared
        context = read_now(params, context, span, starts[::once])
        context = jax.tree.map(lambda x: jnp.repeat(x, once, axis=0), context)
        return context.replace(cache=grow_cache(context.cache, slots))

    def _message(self, row, turn):
        """Says a turn's message; what the model reads, and where that begins."""
        prompts = self.dialogue.prompts
        fields = jax.device_get(self._fields(row.state, self.env_params))
        fields |= {"turn": turn + 1, "actions_left": row.actions_left}
        template = prompts.opening if turn == 0 else prompts.following
        message = self.tokenizer.encode(template.render(fields | row.last))
        before = len(row.tokens)
        row.extend(message, [0.0] * len(message), turn, is_sampled=False)
        if self.write_window is None:
            return before, message
        told = windows_oracle.Told(
            opening=prompts.opening.render(fields),
            state=self.env.template.render(fields),
            message=message,
            turn=turn + 1,
            actions_left=row.actions_left,
        )
        row.told.append(told)
        window = windows_oracle.join(self.write_window(row.told), self.tokenizer)
        row.windows[turn] = window
        return 0, window.ids

    def _reply(self, params, context, rows, turn_keys):
        for row in rows:
            row.reply, row.reply_log_probs = [], []
        writing = [row for row in rows if row.is_active]
        for step in range(self.max_reply_tokens):
            positions = [row.num_read + len(row.reply) for row in rows]
            context, tokens, log_probs = self._step(
                params,
                context,
                np.asarray(positions, np.int32),
                self._fold(turn_keys, step),
            )
            tokens, log_probs = np.asarray(tokens), np.asarray(log_probs)
            for i, row in enumerate(rows):
                if any(row is other for other in writing):
                    row.reply.append(int(tokens[i]))
                    row.reply_log_probs.append(log_probs[i])
            writing = [row for row in writing if not self._has_ended(row)]
            if not writing:
                break
        for row in rows:
            row.num_read += len(row.reply)
        return context

    def _has_ended(self, row):
        if self.dialogue.text_end is not None and b"</answer>" in self._written(row):
            return True
        return row.reply[-1] in self._stops

    def _written(self, row):
        spelled = self.tokenizer.token_bytes
        return b"".join(spelled[t] for t in row.reply if t < len(spelled))

    def _act(self, row, turn, noise_key):
        start = len(row.tokens)
        row.extend(row.reply, row.reply_log_probs, turn, is_sampled=True)
        written = self._written(row)
        names, num_listed, has_format = parse_reply(
            written, self.env.action_vocabulary, self.budget.max_actions_per_turn
        )
        known = np.asarray(self._names(row.state, self.env_params)).tolist()
        valid = [known.index(name) for name in names if name in known]
        seen = state_hash_oracle.hash_fields(
            jax.device_get(self._fields(row.state, self.env_params))
        )
        before, bonus = row.state, 0.0
        actions, effective, reward = [], 0, np.float32(0)
        for action in valid[: row.actions_left]:
            key = jax.random.fold_in(noise_key, len(actions))
            _, row.state, paid, _, info = self._env_step(
                key, row.state, jnp.int32(action), self.env_params
            )
            actions.append(action)
            effective += int(info["effective"])
            reward += np.float32(paid)
            row.is_over = bool(self._is_over(row.state))
            if row.is_over:
                break
        if self.bonus is not None:
            boards = [
                np.asarray(self.env.observe(None, state, None, self.env_params))
                for state in (before, row.state)
            ]
            bonus = self.bonus(written, has_format, len(row.reply), boards)
        is_punished = not valid or len(valid) < len(names)
        room = self.budget.max_actions_per_turn - len(actions)
        row.turns[turn] = {
            "played": True,
            "reward": reward,
            "penalty": np.float32(self.format_penalty if is_punished else 0),
            "bonus": np.float32(bonus),
            "reply_start": start,
            "reply_length": len(row.reply),
            "reply_is_cut": not self._has_ended(row),
            "has_format": has_format,
            "num_listed": num_listed,
            "num_valid": len(valid),
            "num_executed": len(actions),
            "num_effective": effective,
            "actions": actions + [-1] * room,
            "actions_left": row.actions_left,
            "state_hash": seen,
        }
        row.actions_left -= len(actions)
        row.last = {
            "reward_hundredths": int(np.round(reward * np.float32(100))),
            "was_invalid": int(not valid),
            "was_cut": int(row.reply[-1] != self.dialogue.stop_token),
        }
        row.is_active = not row.is_over and row.actions_left > 0
        if self.write_window is not None:
            row.told[-1].reply, row.told[-1].last = row.reply, row.last
            row.told[-1].was_stopped = row.reply[-1] in self._stops
            row.windows[turn].reply = row.reply

    def _trajectory(self, rows) -> Trajectory:
        width = self.dialogue.max_trajectory_tokens

        def pad(values, fill, dtype):
            return np.asarray([v + [fill] * (width - len(v)) for v in values], dtype)

        def column(name, dtype):
            return np.asarray([[t[name] for t in row.turns] for row in rows], dtype)

        is_float = ("reward", "penalty", "bonus")
        is_bool = ("played", "reply_is_cut", "has_format")
        dtypes = dict.fromkeys(is_float, np.float32) | dict.fromkeys(is_bool, bool)
        dtypes["state_hash"] = np.uint32
        names = rows[0].turns[0]
        turns = Turns(**{n: column(n, dtypes.get(n, np.int32)) for n in names})
        terminated = [
            bool(self.env.is_terminated(row.state, self.env_params)) for row in rows
        ]
        return Trajectory(
            tokens=pad([row.tokens for row in rows], 0, np.int32),
            lengths=np.asarray([len(row.tokens) for row in rows], np.int32),
            loss_mask=pad([row.mask for row in rows], False, bool),
            turn_index=pad([row.turn_index for row in rows], -1, np.int32),
            sample_log_probs=pad([row.log_probs for row in rows], 0, np.float32),
            turns=turns,
            terminated=np.asarray(terminated),
            truncated=~np.asarray(terminated),
            success=np.asarray(
                [bool(self.env.is_success(row.state, self.env_params)) for row in rows]
            ),
            initial_state=jax.tree.map(
                lambda *leaves: np.stack(leaves), *[row.initial for row in rows]
            ),
            windows=None if self.write_window is None else self._windows(rows),
        )

    def _level(self, key, split):
        """The first level of the split that a key and its successors make."""
        for i in range(100):
            next_key = key if i == 0 else jax.random.fold_in(key, i)
            _, state = self._reset(next_key, self.env_params)
            is_held_out = bool(self._is_held_out(state, self.env_params))
            if not self.env.holds_out_levels or is_held_out == (split == "validation"):
                return state
        raise AssertionError("no level of the split")

    def _windows(self, rows) -> Windows:
        shape = (len(rows), self.budget.max_turns)
        tokens = np.zeros((*shape, self.dialogue.max_window_tokens), np.int32)
        lengths, starts = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.window_texts = {}
        for i, row in enumerate(rows):
            for turn, window in row.windows.items():
                whole = window.ids + window.reply
                tokens[i, turn, : len(whole)] = whole
                lengths[i, turn], starts[i, turn] = len(whole), len(window.ids)
                self.window_texts[i, turn] = window.text
        of_turn = np.arange(starts.shape[1], dtype=np.int32)
        of_turn = np.broadcast_to(of_turn, starts.shape)
        return Windows(
            tokens=tokens, lengths=lengths, reply_start=starts, of_turn=of_turn
        )


class _Row:
    """One episode in progress."""

    def __init__(self, state, budget):
        self.initial = self.state = state
        self.is_active, self.is_over = True, False
        self.actions_left = budget.max_actions_per_episode
        self.last = {"reward_hundredths": 0, "was_invalid": 0, "was_cut": 0}
        self.num_read, self.told, self.windows = 0, [], {}
        self.tokens, self.mask, self.turn_index, self.log_probs = [], [], [], []
        nothing = dict.fromkeys(Turns.__dataclass_fields__, 0)
        nothing["actions"] = [-1] * budget.max_actions_per_turn
        nothing["state_hash"] = [0, 0]
        self.turns = [nothing] * budget.max_turns

    def extend(self, tokens, log_probs, turn, *, is_sampled):
        self.tokens += list(tokens)
        self.mask += [is_sampled] * len(tokens)
        self.turn_index += [turn] * len(tokens)
        self.log_probs += list(log_probs)
