"""Levels for tests: many of a game, from one seed."""

import functools

import jax


@functools.cache
def _reset(env):
    return jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))


def sample(env, num_levels, seed=0):
    keys = jax.random.split(jax.random.key(seed), num_levels)
    return _reset(env)(keys, env.default_params)[1]
