"""How fast the games are: steps, levels, resets, and steps with text, per second.

    python -m benchmarks.envs                     # 4,096 instances
    python -m benchmarks.envs --instances=16384 --json=FILE

A step is one executed action. What is compared:

* All array games run one jitted program: a scan of vmapped `step_env` over actions
  drawn beforehand; an instance whose game has ended starts its level again.
  Observations are not read, so no side pays for them.
* Both FrozenLakes get one key per instance and step, split in the same way. gymnax's
  has one fixed board; ours has a board per instance and holds finished games still.
* gymnasium's FrozenLake is one plain Python environment in a loop.
* Other libraries' games, where those are installed: see `benchmarks/env_peers.py`.
* Auto-reset: gymnax's `step` next to the `step_env` of the same game, with levels made
  on the way or beforehand, and the same for games of gymnax. Keys and actions are drawn
  beforehand; observations are kept, as a policy would read them. The games begin at
  moments spread over their time limit, so that not all of them reach it at one step.
* With text: the message of every turn as token ids, and a reply of four actions parsed
  from token ids, for each four steps; replies are drawn from a table made beforehand.
* Pictures: `env.pixels` of Sokoban 6x6, next to Pillow's pasting of the same drawings
  one picture after the other, and to a NumPy fill of as many bytes, on one core.

Every figure is from whole calls with the result fetched, after a call that compiles.
Machines are noisy: the best of the repeats tells what the program needs, the median
what one gets.
"""

import functools
import operator
import platform
import statistics
from collections.abc import Callable

from absl import flags

from benchmarks import env_peers, harness
from launch import command

_INSTANCES = flags.DEFINE_integer("instances", 4096, "Games played side by side.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Measured calls of each program.")
harness.define_json()

NUM_STEPS = 100
NUM_TURNS = 10
PYTHON_STEPS = 20_000
REPLIES = 1024
PASTED = 1000
NUM_LEVELS = 16_384
# Row of the table -> game and constructor arguments.
GAMES = {
    "Sokoban 6x6, 1 box": ("sokoban", {}),
    "Sokoban 8x8, 2 boxes": ("sokoban", {"rows": 8, "cols": 8, "num_boxes": 2}),
    "FrozenLake 4x4": ("frozen_lake", {}),
    "Countdown, 3 numbers": ("countdown", {}),
    "Countdown, 4 numbers": ("countdown", {"num_numbers": 4}),
    "2x2x2 cube": ("cube2x2", {}),
    "Sudoku 4x4": ("sudoku", {}),
    "Sudoku 9x9, 32 to 40 blanks": (
        "sudoku",
        {"size": 9, "min_blanks": 32, "max_blanks": 40},
    ),
    "2048 3x3": ("game2048", {}),
    "2048 4x4": ("game2048", {"size": 4, "goal": 2048}),
}


def rate(program: Callable, amount: int, repeats: int) -> dict:
    """Units per second of a program that does `amount` units in a call."""
    seconds = harness.take_turns({"": program}, repeats)[0][""]
    return {
        "best_per_s": amount / min(seconds),
        "median_per_s": amount / statistics.median(seconds),
    }


def begin(env, params, key, instances: int):
    """Observations and states of games that begin, also where all begin alike."""
    import jax
    import jax.numpy as jnp

    reset = jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))
    begun = reset(jax.random.split(key, instances), params)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (instances, *x.shape[1:])), begun)


def measure_steps(env, params, *, instances: int, repeats: int) -> dict:
    """Steps per second of random play with any gymnax environment."""
    import jax
    import jax.numpy as jnp

    reset_key, action_key, play_key = jax.random.split(jax.random.key(0), 3)
    _, first = begin(env, params, reset_key, instances)
    shape = (NUM_STEPS, instances)
    actions = jax.random.randint(action_key, shape, 0, env.num_actions)

    def step_one(key, state, first, action):
        _, state, reward, terminated, _ = env.step_env(key, state, action, params)
        is_over = terminated | env.is_truncated(state, params)
        state = jax.tree.map(lambda a, b: jnp.where(is_over, a, b), first, state)
        return state, reward

    @jax.jit
    def play(key, first, actions):
        def step(carry, action):
            key, states, total = carry
            key, step_key = jax.random.split(key)
            keys = jax.random.split(step_key, instances)
            states, rewards = jax.vmap(step_one)(keys, states, first, action)
            return (key, states, total + rewards), None

        start = (key, first, jnp.zeros(instances))
        (_, states, total), _ = jax.lax.scan(step, start, actions)
        return states, total

    program = functools.partial(play, play_key, first, actions)
    return rate(program, NUM_STEPS * instances, repeats)


def measure_auto_reset(env, params, step, *, instances: int, repeats: int) -> dict:
    """Steps per second of `env.step` or `env.step_env`, and games ended per step."""
    import jax
    import jax.numpy as jnp

    reset_key, time_key, action_key, play_key = jax.random.split(jax.random.key(0), 4)
    observed, states = begin(env, params, reset_key, instances)
    limit = params.max_steps_in_episode
    time = jax.random.randint(time_key, (instances,), 0, limit, states.time.dtype)
    states = states.replace(time=time)
    shape = (NUM_STEPS, instances)
    actions = jax.random.randint(action_key, shape, 0, env.num_actions)

    def advance(carry, inputs):
        keys, actions = inputs
        _, states, total, ended = carry
        play_all = jax.vmap(step, in_axes=(0, 0, 0, None))
        observed, states, rewards, *ends, _ = play_all(keys, states, actions, params)
        ended = ended + functools.reduce(operator.or_, ends)
        return (observed, states, total + rewards, ended), None

    @jax.jit
    def play(observed, states, keys, actions):
        start = (observed, states, jnp.zeros(instances), jnp.zeros(instances, int))
        return jax.lax.scan(advance, start, (keys, actions))[0]

    keys = jax.random.split(play_key, shape)
    program = functools.partial(play, observed, states, keys, actions)
    ended = float(program()[3].sum()) / NUM_STEPS
    return rate(program, NUM_STEPS * instances, repeats) | {"ended_per_step": ended}


def auto_resets(instances: int, repeats: int) -> dict[str, dict[str, dict]]:
    """Figures of `step_env`, `step` and `step` with levels beforehand, by game."""
    import gymnax
    import jax

    import envs

    sizes = {"instances": instances, "repeats": repeats}
    rates = {}
    for name in (*envs.GYMNAX_IDS, "CartPole-v1", "Breakout-MinAtar"):
        env, params = gymnax.make(name)
        steps = {"step_env": env.step_env, "step": env.step}
        if name in envs.GYMNAX_IDS:
            keys = jax.random.split(jax.random.key(1), NUM_LEVELS)
            levels = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, params)[1]
            steps["with_levels"] = env.with_levels(levels).step
        rates[name] = {
            kind: measure_auto_reset(env, params, step, **sizes)
            for kind, step in steps.items()
        }
    return rates


def print_auto_resets(found: dict[str, dict[str, dict]]) -> None:
    """A table in Markdown: best steps per second, and shares of `step_env`."""
    rows = []
    for name, kinds in found.items():
        base = kinds["step_env"]["best_per_s"]
        for kind in ("step", "with_levels"):
            if kind not in kinds:
                continue
            title = name if kind == "step" else f"the same, {NUM_LEVELS:,} levels"
            ended, best = kinds[kind]["ended_per_step"], kinds[kind]["best_per_s"]
            rows.append(
                {
                    "M steps per second": title,
                    "ended per step": f"{ended:,.0f}",
                    "`step_env`": f"{base / 1e6:.1f}",
                    "`step`": f"{best / 1e6:.2f}",
                    "share": f"{best / base:.0%}",
                }
            )
    print()
    harness.print_rows(rows)


def measure_levels(env, params, *, instances: int, repeats: int) -> dict:
    """Levels generated per second."""
    import jax

    reset = jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))
    keys = jax.random.split(jax.random.key(0), instances)
    return rate(functools.partial(reset, keys, params), instances, repeats)


def measure_gymnasium(repeats: int) -> dict | None:
    """Steps per second of gymnasium's FrozenLake; None where it is not installed."""
    try:
        import gymnasium
    except ModuleNotFoundError:
        return None
    play = env_peers.play_gymnasium(gymnasium.make("FrozenLake-v1"))
    return rate(play, PYTHON_STEPS, min(repeats, 3))


def measure_text(*, instances: int, repeats: int) -> dict:
    """Steps per second with token observations and parsed answers, on Sokoban."""
    import jax
    import jax.numpy as jnp

    import envs
    from ragen_jax.rollout.actions import run_answer

    env = envs.make("sokoban")
    params = env.default_params
    dialogue, replies, lengths = _pocket_dialogue(env)
    reset_key, choice_key = jax.random.split(jax.random.key(0))
    _, first = begin(env, params, reset_key, instances)
    choices = jax.random.randint(choice_key, (NUM_TURNS, instances), 0, REPLIES)

    def turn_one(dialogue, state, reward, turn, tokens, length):
        said = env.text_fields(state, params) | {
            "turn": turn,
            "actions_left": turn,
            "reward_hundredths": jnp.round(100 * reward).astype(jnp.int32),
            "was_invalid": jnp.int32(0),
            "was_cut": jnp.int32(0),
        }
        message = dialogue.following.tokens(said)
        answer = dialogue.parser.parse(tokens, length)
        key = jax.random.key(0)  # Sokoban has no noise
        limit = answer.num_names
        state, outcome = run_answer(env, params, state, key, answer, limit)
        return state, outcome.reward, outcome.num_executed, message

    @jax.jit
    def play(dialogue, first, choices):
        def turn(carry, inputs):
            states, rewards, executed = carry
            number, choice = inputs
            turn_all = jax.vmap(turn_one, (None, 0, 0, None, 0, 0))
            states, rewards, new, messages = turn_all(
                dialogue, states, rewards, number, replies[choice], lengths[choice]
            )
            return (states, rewards, executed + new), messages

        zeros = jnp.zeros(instances)
        start = (first, zeros, zeros.astype(jnp.int32))
        numbers = jnp.arange(1, NUM_TURNS + 1)
        return jax.lax.scan(turn, start, (numbers, choices))

    program = functools.partial(play, dialogue, first, choices)
    (_, _, executed), messages = program()
    figures = rate(program, int(executed.sum()), repeats)
    return figures | {"message_tokens": float(messages.length.mean())}


def _pocket_dialogue(env):
    """Sokoban's dialogue with the pocket tokenizer, and replies as token ids."""
    import jax.numpy as jnp
    import numpy as np

    from configs import base
    from envs.base import PlayBudget
    from ragen_jax.program.build import POCKET
    from ragen_jax.text.dialogue import build_dialogue
    from ragen_jax.text.tokenizer import load_tokenizer

    config = base.get_config()
    tokenizer = load_tokenizer(POCKET)
    budget = PlayBudget(NUM_TURNS, 4, 4 * NUM_TURNS)
    dialogue = build_dialogue(
        env,
        tokenizer,
        style=config.prompt.style,
        tokenization=config.prompt.tokenization,
        budget=budget,
        max_reply_tokens=config.rollout.max_reply_tokens,
        length_hint_words=config.prompt.length_hint_words,
    )
    replies = np.zeros((REPLIES, config.rollout.max_reply_tokens), np.int32)
    lengths = np.zeros(REPLIES, np.int32)
    for i, drawn in enumerate(np.random.default_rng(0).integers(0, 4, (REPLIES, 4))):
        names = " || ".join(env.action_vocabulary[action] for action in drawn)
        ids = tokenizer.encode(f"P (1, 2)</think><answer>{names}</answer>")
        ids.append(dialogue.stop_token)
        replies[i, : len(ids)], lengths[i] = ids, len(ids)
    return dialogue, jnp.asarray(replies), jnp.asarray(lengths)


def measure_pictures(cell: int, *, instances: int, repeats: int) -> dict[str, dict]:
    """Sokoban's boards as pictures, what Pillow takes, and what memory alone would."""
    import jax
    import numpy as np
    from PIL import Image

    import envs
    from envs.pictures import draw_cells

    env = envs.make("sokoban")
    params = env.default_params
    _, levels = begin(env, params, jax.random.key(0), instances)
    draw = jax.jit(jax.vmap(lambda level: env.pixels(level, params, cell)))
    boards = np.asarray(jax.vmap(lambda level: env.board(level, params))(levels))
    cells = draw_cells(env.picture.symbols, env.picture.meanings, cell)
    sprites = [Image.fromarray(drawn) for drawn in cells]
    memory = np.empty(jax.eval_shape(draw, levels).shape, np.uint8)

    def paste() -> None:
        for board in boards[:PASTED]:
            rows, cols = board.shape
            picture = Image.new("RGB", (cols * cell, rows * cell))
            for (row, col), symbol in np.ndenumerate(board):
                picture.paste(sprites[symbol], (col * cell, row * cell))

    label = f"Sokoban's pictures, {cell} px a cell"
    return {
        label: rate(functools.partial(draw, levels), instances, repeats),
        f"{label}: Pillow": rate(paste, min(PASTED, instances), repeats),
        f"{label}: filling memory": rate(lambda: memory.fill(1), instances, repeats),
    }


def measure(instances: int, repeats: int) -> dict[str, dict]:
    """All figures, by name, in the order of the table."""
    import gymnax

    import envs

    sizes = {"instances": instances, "repeats": repeats}
    figures = {}
    for label, (name, kwargs) in GAMES.items():
        env = envs.make(name, **kwargs)
        params = env.default_params
        figures[f"{label}: steps"] = measure_steps(env, params, **sizes)
        figures[f"{label}: levels"] = measure_levels(env, params, **sizes)
    gymnax_lake, gymnax_params = gymnax.make("FrozenLake-misc")
    figures |= {
        "gymnax's FrozenLake: steps": measure_steps(
            gymnax_lake, gymnax_params, **sizes
        ),
        "gymnasium's, Python: steps": measure_gymnasium(repeats),
        "Sokoban with text: steps": measure_text(**sizes),
        **measure_pictures(16, **sizes),
        **measure_pictures(28, **sizes),
    }
    figures |= env_peers.measure(rate, **sizes)
    return {name: figure for name, figure in figures.items() if figure is not None}


def main(_: list[str]) -> int:
    if _INSTANCES.value < 1 or _REPEATS.value < 1:
        raise ValueError("--instances and --repeats must be at least 1")
    import jax

    figures = measure(_INSTANCES.value, _REPEATS.value)
    device = jax.devices()[0].device_kind
    print(f"{_INSTANCES.value:,} instances on {device} (jax {jax.__version__})")
    print(f"{'per second':<44}{'best':>14}{'median':>14}")
    for name, figure in figures.items():
        best, median = figure["best_per_s"], figure["median_per_s"]
        print(f"{name:<44}{best:>14,.0f}{median:>14,.0f}")
    tokens = figures["Sokoban with text: steps"]["message_tokens"]
    print(f"text: {tokens:.0f} tokens per message, 4 actions per reply")
    resets = auto_resets(_INSTANCES.value, _REPEATS.value)
    print_auto_resets(resets)
    harness.write_json(
        {
            "device": device,
            "machine": platform.machine(),
            "jax": jax.__version__,
            "instances": _INSTANCES.value,
            "figures": figures,
            "auto_resets": resets,
        }
    )
    return 0


if __name__ == "__main__":
    command.run(main)
