"""Calls of table entries with all they ask for by name, compiled once per entry."""

import contextlib
import functools

import jax
import jaxtyping

from ragen_jax.registry.functions import data_names, option_names

OPTIONS = {
    "gamma": 0.9,
    "lam": 0.8,
    "high_level_gamma": 0.95,
    "step_weight": 0.5,
    "direction": "largest",
    "keep_zero": True,
    "keep_fraction": 0.5,
    "top_k": 2,
    "top_p": 0.9,
    "top_p_epsilon": 0.01,
    "min_p": 0.37,
    "quantile_low": 0.25,
    "quantile_high": 0.75,
    "rows_per_group": 2,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "dual_clip": 3.0,
    "normalization": "mean_std",
    "grouping": "state",
}


@contextlib.contextmanager
def unchecked():
    """Without the tests' type checker: annotations name JAX's arrays, users' differ."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def options_of(entry, **changes):
    assert set(changes) <= set(option_names(entry))
    return {name: (OPTIONS | changes)[name] for name in option_names(entry)}


def run(entry, data, **options):
    """The entry's result on data by name; see `learner.batch.named_arrays`."""
    function, arrays = program(entry, data, **options)
    return function(**arrays)


def program(entry, data, **options):
    """What `run` calls, and the arrays it passes."""
    taken = {name: data[name] for name in data_names(entry)}
    sizes = {name: x for name, x in taken.items() if isinstance(x, int)}
    arrays = {name: x for name, x in taken.items() if name not in sizes}
    return compiled(entry, **sizes, **options), arrays


@functools.cache
def compiled(entry, **fixed):
    options = {k: v for k, v in fixed.items() if k in option_names(entry)}
    data = {k: v for k, v in fixed.items() if k in data_names(entry)}
    return jax.jit(functools.partial(entry, **options_of(entry, **options), **data))
