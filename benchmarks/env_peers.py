"""Speed of other libraries' games, those that are installed (see `benchmarks.envs`).

jumanji's games run as ours do: one jitted program, a scan of vmapped steps over actions
drawn beforehand, ended games started again. Their steps keep a mask of valid actions,
which is part of their state. Games and generators in Python run in a loop.

    pip install jumanji==1.1.2 reasoning-gym==0.1.25 gymnasium-2048==0.1.2
"""

import functools
import importlib.util
import itertools
from collections.abc import Callable

NUM_STEPS = 100
PYTHON_STEPS = 20_000
PYTHON_LEVELS = 200
# Row of the table -> dataset of reasoning-gym and its options: levels like ours.
GENERATORS = {
    "reasoning-gym's Countdown, 3 numbers: levels": (
        "countdown",
        {
            "min_numbers": 3,
            "max_numbers": 3,
            "max_value": 99,
            "min_target": 1,
            "max_target": 99,
        },
    ),
    "reasoning-gym's Sudoku 4x4: levels": (
        "mini_sudoku",
        {"min_empty": 4, "max_empty": 8},
    ),
    "reasoning-gym's Sudoku 9x9: levels": (
        "sudoku",
        {"min_empty": 32, "max_empty": 40},
    ),
}


def measure(rate: Callable, *, instances: int, repeats: int) -> dict[str, dict]:
    """Figures by name.

    Args:
      rate: `(program, amount, repeats) -> figures`.
      instances: games of a vectorised library that are played side by side.
      repeats: measured calls.
    """
    few = min(repeats, 3)
    rates = {}
    if importlib.util.find_spec("jumanji"):
        from jumanji.environments import Game2048, Sudoku

        for name, env in (("2048 4x4", Game2048()), ("Sudoku 9x9", Sudoku())):
            play = _jumanji(env, instances)
            rates[f"jumanji's {name}: steps"] = rate(
                play, NUM_STEPS * instances, repeats
            )
    if importlib.util.find_spec("gymnasium_2048"):
        rates["gymnasium-2048, Python: steps"] = rate(_gymnasium(), PYTHON_STEPS, few)
    if importlib.util.find_spec("reasoning_gym"):
        import reasoning_gym

        for name, (dataset, options) in GENERATORS.items():
            levels = reasoning_gym.create_dataset(
                dataset, seed=0, size=10**6, **options
            )
            rates[name] = rate(_generate(levels), PYTHON_LEVELS, few)
    return rates


def _jumanji(env, instances: int) -> Callable:
    import jax
    import jax.numpy as jnp
    import numpy as np

    reset_key, action_key = jax.random.split(jax.random.key(0))
    keys = jax.vmap(jax.random.key_data)(jax.random.split(reset_key, instances))
    first, _ = jax.jit(jax.vmap(env.reset))(keys)
    spec = env.action_spec
    sizes = np.asarray(spec.num_values)
    shape = (NUM_STEPS, instances, *spec.shape)
    actions = jax.random.randint(action_key, shape, 0, sizes)

    def step_one(state, first, action):
        state, timestep = env.step(state, action)
        is_over = timestep.last()
        state = jax.tree.map(lambda a, b: jnp.where(is_over, a, b), first, state)
        return state, timestep.reward

    @jax.jit
    def play(first, actions):
        def step(carry, action):
            states, total = carry
            states, rewards = jax.vmap(step_one)(states, first, action)
            return (states, total + rewards), None

        return jax.lax.scan(step, (first, jnp.zeros(instances)), actions)[0]

    return functools.partial(play, first, actions)


def _gymnasium() -> Callable:
    import gymnasium
    import gymnasium_2048

    gymnasium.register_envs(gymnasium_2048)
    return play_gymnasium(gymnasium.make("gymnasium_2048/TwentyFortyEight-v0"))


def play_gymnasium(env) -> Callable:
    """Random play of `PYTHON_STEPS` steps of a gymnasium environment of 4 actions."""
    import numpy as np

    env = env.unwrapped
    actions = np.random.default_rng(0).integers(0, 4, PYTHON_STEPS).tolist()

    def play():
        env.reset(seed=0)
        for action in actions:
            if env.step(action)[2]:
                env.reset()

    return play


def _generate(levels) -> Callable:
    """Every call makes the next `PYTHON_LEVELS` levels of a data set."""
    numbers = itertools.count()

    def generate():
        for _ in range(PYTHON_LEVELS):
            levels[next(numbers)]

    return generate
