"""`model.remat`: less memory for the update, and only for the update."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from configs import sokoban
from ragen_jax.memory.plan import make_plan, read_model
from ragen_jax.memory.programs import MemoryUse
from ragen_jax.models.decoder import REMAT_POLICIES
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.policy import abstract_params, build_policy
from ragen_jax.tasks.build import build_task
from ragen_jax.tasks.specs import env_specs
from tests import commands

MODEL, TOKENIZER, _ = read_model("pocket")
# Wide and deep enough that activations, not weights or logits, fill the memory.
SHAPE = dataclasses.replace(MODEL, num_hidden_layers=4)
NOTHING = MemoryUse(arguments=0, outputs=0, temporaries=0, aliased=0)
PLAYED = dict.fromkeys(("rollout", "evaluation"), NOTHING)


def plan_of(remat, preset="pocket,grpo", known=PLAYED, **changes):
    config = sokoban.get_config(preset)
    changes = {"model.remat": remat} | commands.dotted(changes)
    config.update_from_flattened_dict(changes)
    return make_plan(config, SHAPE, TOKENIZER, known, compiled=True)


@pytest.fixture(scope="module")
def plans():
    plans = {remat: plan_of(remat) for remat in (None, "projections", "layers")}
    uncompiled = PLAYED | {"update": NOTHING}
    return plans | {"attention": plan_of("attention", known=uncompiled)}


@pytest.mark.slow
def test_the_peak_falls_with_what_is_kept(plans):
    peaks = {name: plan.memory["update"].temporaries for name, plan in plans.items()}
    assert peaks["layers"] < peaks["projections"] < peaks[None]
    # A layer at a time instead of four, beside what is there anyway.
    assert peaks["layers"] < 0.6 * peaks[None]


@pytest.mark.slow
def test_what_is_kept_is_what_the_table_says(plans):
    """Float32 numbers per token of a microbatch and layer."""
    assert set(plans) == {None, *REMAT_POLICIES}
    width, inner, rows = SHAPE.hidden_size, SHAPE.intermediate_size, 8
    keys_and_values = 2 * SHAPE.num_key_value_heads * SHAPE.head_dim
    kept = {
        name: plan.holdings["activations kept for one backward pass"]
        for name, plan in plans.items()
    }
    config = sokoban.get_config("pocket,grpo")
    task = build_task(config, env_specs(config)[0], TOKENIZER)
    num_tokens = task.dialogue.max_trajectory_tokens
    per_token = 4 * rows * num_tokens * SHAPE.num_hidden_layers
    attention = 2 * width + keys_and_values
    # What is no layer's (the last norm's input, angles) is left over in all of them.
    assert kept["attention"] - kept["layers"] == per_token * attention
    wide = 2 * inner
    assert kept["projections"] - kept["attention"] == per_token * wide


@pytest.mark.slow
def test_critics_and_adapters_recompute_too():
    """Were one of the two networks not to, it would keep as much as before."""
    most, least = (
        plan_of(remat, "pocket,ppo", lora__rank=2).memory["update"].temporaries
        for remat in (None, "layers")
    )
    assert least < 0.45 * most


def test_decoding_is_the_same_program():
    params, tokens = abstract_params(MODEL), jnp.zeros((2, 3), jnp.int32)

    def lowered(remat):
        policy = build_policy(MODEL, remat=remat)
        cache = init_cache(MODEL, 2, 8, policy.dtype)
        step = jax.jit(lambda *arguments: policy.forward(*arguments)[0])
        return step.lower(params, tokens, tokens, cache).as_text()

    assert lowered("layers") == lowered(None)
