"""What an update gains where each group's first message is read once.

    python -m benchmarks.shared_prompts --json=FILE      # pocket model
    python -m benchmarks.shared_prompts --model=FOLDER   # another checkpoint
    python -m benchmarks.shared_prompts --tiny           # seconds: checks the command

GRPO on one-turn episodes: groups begin with one message of `--prompt_tokens`, replies
are of `--reply_tokens`, all groups are kept, in one minibatch. Token ids are random.
Updates with and without `learner.share_prompts` alternate. CPU seconds, of all threads
together, depend less than others on what else the machine does. The status is 1 when
the first updates disagree (loss, entropy or gradient norm by 1 %).
"""

import time

from absl import flags

from benchmarks import harness, runs
from launch import command

_MODEL = flags.DEFINE_string("model", "pocket", "A model.path.")
_PROMPT = flags.DEFINE_integer("prompt_tokens", 200, "Tokens of the first message.")
_REPLY = flags.DEFINE_integer("reply_tokens", 24, "Tokens of a reply.")
_GROUPS = flags.DEFINE_integer("groups", 8, "Groups of eight rows.")
_ROWS = flags.DEFINE_integer("microbatch_rows", 8, "Rows of a pass.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured updates of each kind.")
_TINY = flags.DEFINE_bool("tiny", False, "A tiny random network and batch.")
harness.define_json()

GROUP_SIZE = 8


def read_config():
    """The run, checked."""
    rows = _GROUPS.value * GROUP_SIZE
    changes = {
        "model.path": _MODEL.value,
        "rollout.num_groups": _GROUPS.value,
        "rollout.group_size": GROUP_SIZE,
        "rollout.max_turns": 1,
        "filter.keep_fraction": 1.0,
        # One minibatch, of which both updates must say the same.
        "learner.minibatch_rows": rows,
        "learner.microbatch_rows": _ROWS.value,
    }
    return runs.task_config("pocket,grpo", changes)


def make_batch(setup, config, sizes):
    """Random episodes of one turn, equal in a group up to the first reply."""
    import jax
    import jax.numpy as jnp

    from ragen_jax.program.lowering import describe_batch

    blank = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), describe_batch(config, setup.parts)
    )
    rows, start = len(blank.lengths), sizes.message_tokens
    width = start + sizes.following_tokens
    keys = jax.random.split(jax.random.key(1), 3)
    vocabulary = setup.parts.policy.config.vocab_size
    tokens = jax.random.randint(keys[0], (rows, width), 0, vocabulary)
    messages = jnp.repeat(tokens[:: sizes.group_size, :start], sizes.group_size, axis=0)
    tokens = tokens.at[:, :start].set(messages)
    log_probs = runs.policy_log_probs(setup, config, setup.params, tokens)
    mask = jnp.broadcast_to(jnp.arange(width)[None] >= start, tokens.shape)
    noise = 0.05 * jax.random.normal(keys[1], tokens.shape)
    reward = jax.random.normal(keys[2], blank.turns.reward.shape)
    turns = blank.turns.replace(
        played=jnp.ones_like(blank.turns.played),
        reward=reward,
        reply_start=jnp.full_like(blank.turns.reply_start, start),
    )
    return blank.replace(
        tokens=tokens,
        lengths=jnp.full(rows, width, jnp.int32),
        loss_mask=mask,
        sample_log_probs=jnp.where(mask, log_probs + noise, 0.0),
        turn_index=jnp.zeros(tokens.shape, jnp.int32),
        turns=turns,
    )


class Contestant:
    """An update, with its state and the CPU seconds it took."""

    def __init__(self, learner, params, batch, key):
        fixed = learner.freeze(params), learner.numbers
        self._state = learner.init(params, 0)
        began, began_cpu = time.perf_counter(), time.process_time()
        lowered = learner.update.lower(*fixed, self._state, batch, key)
        compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - began
        self.compile_cpu_seconds = time.process_time() - began_cpu
        self.temporaries = compiled.memory_analysis().temp_size_in_bytes
        self.cpu_seconds: list[float] = []
        self._update = lambda state: compiled(*fixed, state, batch, key)

    def __call__(self) -> dict[str, float]:
        import jax

        began = time.process_time()
        self._state, stats, _ = jax.block_until_ready(self._update(self._state))
        self.cpu_seconds.append(time.process_time() - began)
        return {name: float(stats[key]) for name, key in runs.OWN_STATS.items()}


def measure(config) -> dict:
    """Seconds of both updates, in turn, and what they say of their first step."""
    import jax

    from ragen_jax.learner.learner import Networks, build_learner
    from ragen_jax.learner.prompts import SharedPrompts

    setup = runs.set_up(config, tiny=_TINY.value)
    sizes = SharedPrompts(_PROMPT.value, _REPLY.value, GROUP_SIZE)
    batch, key = make_batch(setup, config, sizes), jax.random.key(config.seed)
    mesh = setup.parts.batch_sharding.mesh
    networks = Networks(setup.parts.policy)
    contestants = {
        name: Contestant(
            build_learner(config, networks, mesh, prompts=prompts),
            setup.params,
            batch,
            key,
        )
        for name, prompts in (("once per row", None), ("once per group", sizes))
    }
    stats = {name: update() for name, update in contestants.items()}
    seconds, _ = harness.take_turns(contestants, _REPEATS.value, warm_ups=0)
    rows, width = batch.tokens.shape
    return {
        "notes": setup.notes,
        "problems": runs.disagreements(stats),
        "rows": rows,
        "row_tokens": width,
        "prompt_tokens": sizes.message_tokens,
        "microbatch_rows": config.learner.microbatch_rows,
        "first_updates": stats,
        "seconds": seconds,
        "cpu_seconds": {n: c.cpu_seconds[1:] for n, c in contestants.items()},
        "compile_s": {n: c.compile_seconds for n, c in contestants.items()},
        "compile_cpu_s": {n: c.compile_cpu_seconds for n, c in contestants.items()},
        "temporary_bytes": {n: c.temporaries for n, c in contestants.items()},
    }


def print_table(figures: dict) -> None:
    print(
        f"{figures['rows']} rows of {figures['row_tokens']} tokens, "
        f"{figures['prompt_tokens']} of them common to {GROUP_SIZE} rows; passes of "
        f"{figures['microbatch_rows']} rows"
    )
    cpu = figures["cpu_seconds"]
    base = min(cpu["once per row"])
    harness.print_rows(
        {
            "prompts are read": name,
            **harness.times(seconds),
            "min CPU s": f"{min(cpu[name]):.3f}",
            "of the CPU s": f"{min(cpu[name]) / base:.2f}",
            "compiled in s": f"{figures['compile_s'][name]:.1f}",
            "temporary MB": f"{figures['temporary_bytes'][name] / 1e6:,.0f}",
        }
        for name, seconds in figures["seconds"].items()
    )


def main(_: list[str]) -> int:
    return harness.report(measure(read_config()), print_table)


if __name__ == "__main__":
    command.run(main)
