"""What a mesh may change, which is rounding, and what it may send between devices."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import exchanges
from configs import sokoban
from ragen_jax import rngs
from ragen_jax.devices import sharding
from ragen_jax.learner.state import TrainState
from ragen_jax.models.hf.weights import Texts, load_checkpoint, save_checkpoint
from ragen_jax.program.build import POCKET, Program, build_program
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.runs.checkpoint import Checkpointer
from ragen_jax.tasks.build import build_collect
from ragen_jax.types import Trajectory

# What is promised is rounding of the programs that users run.
pytestmark = [pytest.mark.optimized, pytest.mark.slow]

# Each axis split and not, and so each pair of axes; `test_mesh` splits all three.
ALONE, MIXED = (1, 1, 1), (1, 2, 2)
MESHES = (MIXED, (2, 2, 1), (2, 1, 2))
ROWS = 16
SETTINGS = {
    # One network: the bounds below count its parameters.
    "algo.advantage": "grpo",
    "rollout.num_groups": 2,
    "rollout.group_size": 8,
    "rollout.max_turns": 1,
    # AdamW gives a gradient near 0 the full step, with the sign of its rounding.
    "optimizer.learning_rate": 5e-6,
    "learner.minibatch_rows": 8,
    "learner.microbatch_rows": 8,
    "filter.keep_fraction": 1.0,
    "evaluation.num_prompts": 8,
}


@dataclasses.dataclass
class Iteration:
    """One iteration of the pocket model on a mesh, and what was compiled for it."""

    program: Program
    rollout: Trajectory
    update: jax.stages.Compiled
    rollout_text: str
    state: TrainState
    stats: dict

    def learn(self, state, rollout):
        """The update on this mesh; `rollout` may come from any."""
        rollout = jax.tree.map(
            lambda x, own: jax.device_put(np.asarray(x), own.sharding),
            rollout,
            self.rollout,
        )
        return self.update(*self.program.update.args, state, rollout, KEY)


KEY = rngs.stream(rngs.step_key(rngs.root_key(0), 0), "shuffle")


@pytest.fixture(scope="module")
def iterate(tmp_path_factory):
    """The first iteration on a mesh, made once."""
    folder = tmp_path_factory.mktemp("model")
    save_checkpoint(folder, *widened(), Texts(POCKET))
    return functools.cache(functools.partial(_iterate, folder))


def widened():
    """Two layers of the pocket model, which play, with more inner units of weight 0.

    The size of its vocabulary then stands for nothing else in a program.
    """
    model, params = load_checkpoint(POCKET)
    layers, extra = params["layers"], 64
    params["layers"] = {"0": layers["0"], "1": layers["3"]}
    for layer in params["layers"].values():
        mlp = layer["mlp"]
        for name, axis in (("gate_proj", 1), ("up_proj", 1), ("down_proj", 0)):
            widths = [(0, 0), (0, 0)]
            widths[axis] = (0, extra)
            mlp[name]["kernel"] = np.pad(mlp[name]["kernel"], widths)
    sizes = {
        "num_hidden_layers": 2,
        "intermediate_size": model.intermediate_size + extra,
    }
    return dataclasses.replace(model, **sizes), params


def _iterate(folder, mesh) -> Iteration:
    config = sokoban.get_config()
    axes = dict(zip(sharding.MESH_AXES, mesh, strict=True))
    config.update_from_flattened_dict(
        SETTINGS
        | {f"mesh.{name}": size for name, size in axes.items()}
        | {"model.path": str(folder)}
    )
    program = build_program(config)
    layout = {"num_groups": 2, "group_size": 8}
    where = sharding.make_mesh(**axes)
    # All rows at once, also on one device.
    config.rollout.part_rows = None
    collect = build_collect(config, program.task, program.policy, where, **layout)
    keys = rollout_keys(rngs.step_key(rngs.root_key(0), 0), 2, 8)
    play = (program.play_params(program.state), program.task.dialogue, keys)
    rollout_text = collect.lower(*play).compile().as_text()
    rollout = jax.block_until_ready(collect(*play))
    learn = (*program.update.args, program.state, rollout, KEY)
    update = program.update.func.lower(*learn).compile()
    state, stats, _ = jax.block_until_ready(update(*learn))
    return Iteration(program, rollout, update, rollout_text, state, stats)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_mesh_changes_rounding_alone(iterate, mesh):
    """Tokens, masks, states and rewards to the bit, at this seed."""
    one, split = iterate(ALONE), iterate(mesh)
    mine, theirs = jax.device_get((one.rollout, split.rollout))
    assert mine.turns.reward.std() > 0
    assert mine.turns.num_executed.sum() > 0
    chex.assert_trees_all_close(
        mine.sample_log_probs, theirs.sample_log_probs, rtol=0, atol=1e-5
    )
    chex.assert_trees_all_equal(
        *(x.replace(sample_log_probs=None) for x in (mine, theirs))
    )
    for leaf in jax.tree.leaves(split.rollout):
        (shape,) = {shard.data.shape for shard in leaf.addressable_shards}
        assert shape[0] == ROWS // (mesh[0] * mesh[1])
    mine, theirs = jax.device_get((one.state.params, split.state.params))
    chex.assert_trees_all_close(mine, theirs, rtol=0, atol=1e-6)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), mine, widened()[1])
    assert min(jax.tree.leaves(moved)) > 2e-6
    for name in ("actor/grad_norm", "actor/entropy"):
        np.testing.assert_allclose(one.stats[name], split.stats[name], rtol=1e-5)


@pytest.mark.parametrize("mesh", [ALONE, *MESHES], ids=str)
def test_a_checkpoint_loads_on_any_mesh(iterate, mesh, tmp_path):
    """Parameters and moments to the bit, and the next loss as it would have been."""
    saved = iterate(MIXED)
    checkpointer = Checkpointer(tmp_path, keep=1)
    checkpointer.save(1, saved.state, saved.program.identity)
    checkpointer.wait()
    expected = jax.device_get(saved.state)
    loss = saved.learn(jax.tree.map(jnp.copy, saved.state), saved.rollout)[1]
    own = iterate(mesh)
    blank = jax.tree.map(lambda x: jnp.zeros_like(x, device=x.sharding), own.state)
    state = checkpointer.restore(1, blank, saved.program.identity)
    chex.assert_trees_all_equal(jax.device_get(state), expected)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
        lambda x: x.sharding, own.state
    )
    stats = own.learn(state, saved.rollout)[1]
    assert stats["actor/pg_loss"] != 0
    np.testing.assert_allclose(
        stats["actor/pg_loss"], loss["actor/pg_loss"], rtol=0, atol=1e-5
    )
    checkpointer.close()


def held_bytes(leaf) -> int:
    """Of a parameter while it is used: split over `tensor` alone."""
    fsdp = leaf.sharding.mesh.shape["fsdp"] if "fsdp" in leaf.sharding.spec else 1
    return leaf.addressable_shards[0].data.nbytes * fsdp


def gathered_bytes(params) -> int:
    """What a device must be sent to hold all of them."""
    leaves = [x for x in jax.tree.leaves(params) if "fsdp" in x.sharding.spec]
    fsdp = leaves[0].sharding.mesh.shape["fsdp"]
    return sum(map(held_bytes, leaves)) if fsdp > 1 else 0


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_update_exchanges_parameters_once_and_no_logits(iterate, mesh):
    """Per microbatch: parameters, their gradients, activations of split layers."""
    own, (data, fsdp, tensor) = iterate(mesh), mesh
    params, model = own.state.params, own.program.model
    numbers = own.rollout.tokens.nbytes  # a number per token: what rows are made of
    found = exchanges.collectives(own.update.as_text())
    vocabulary = {model.vocab_size, model.vocab_size // tensor}
    of_tables = [one for one in found if one.sizes & vocabulary]
    others = [one for one in found if not one.sizes & vocabulary]

    # The table once; its gradients are two, of the lookup and of the head.
    table = held_bytes(params["embed_tokens"]["weight"])
    assert exchanges.total(of_tables, "all-gather") <= (fsdp > 1) * table
    # XLA may put the other gradients, which are small here, into the same exchange.
    gradients = sum(map(held_bytes, jax.tree.leaves(params))) - table
    # XLA may sum over one axis of rows, and what is left to each over the other.
    twice = 1 + (data > 1 and fsdp > 1) / fsdp
    is_reduced = data * fsdp > 1
    # Layers may be gathered for the backward pass again. Tokens are compared over all
    # rows where repetition is measured.
    layers = gathered_bytes(params) - (fsdp > 1) * table
    assert exchanges.total(others, "all-gather") <= 2 * layers + 4 * numbers
    # Of a split layer: two outputs, and five inputs of its products backwards.
    rows = SETTINGS["learner.microbatch_rows"] // (data * fsdp)
    states = rows * own.rollout.tokens.shape[1] * model.hidden_size * 4
    states *= (tensor > 1) * (7 * model.num_hidden_layers + 2)
    at_most = is_reduced * (gradients * twice + 2 * table) + states + 3 * numbers
    assert exchanges.total(found, "all-reduce") <= at_most
    for kind in ("collective-permute", "all-to-all", "reduce-scatter"):
        assert exchanges.total(found, kind) <= 3 * numbers


@pytest.mark.parametrize("mesh", [(2, 2, 1), (2, 1, 2)], ids=str)
def test_copies_exchange_once_a_minibatch(iterate, mesh):
    """Between hosts, which `data` stands for, gradients of all passes travel as one."""
    own, (_, fsdp, tensor) = iterate(mesh), mesh
    table = own.state.params["embed_tokens"]["weight"]
    between_copies = [
        one
        for one in exchanges.collectives(own.update.as_text())
        if any(len({x // (fsdp * tensor) for x in group}) > 1 for group in one.groups)
    ]
    # The loop over minibatches, not the one over passes in it.
    assert max(one.depth for one in between_copies) == 1
    summed = [one for one in between_copies if one.depth == 1]
    assert sum(one.num_bytes for one in summed) >= held_bytes(table)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_rollout_gathers_parameters_once_and_splits_its_cache(iterate, mesh):
    own, (data, fsdp, tensor) = iterate(mesh), mesh
    found = exchanges.collectives(own.rollout_text)
    model, rows = own.program.model, ROWS // (data * fsdp)
    outside = [one for one in found if one.depth == 0]
    assert exchanges.total(outside, "all-gather") == gathered_bytes(own.state.params)
    # A token: two sums per split layer, one of the lookup, scores of the vocabulary.
    logits = rows * model.vocab_size * 4
    steps = [one for one in found if one.depth == 3]
    states = (2 * model.num_hidden_layers + 1) * rows * model.hidden_size * 4
    per_token = sum(one.num_bytes for one in steps if one.kind == "all-reduce")
    assert per_token <= (tensor > 1) * (states + logits / 4)
    inside = sum(one.num_bytes for one in found if one.depth and "gather" in one.kind)
    assert inside < logits / 4
    kv_heads = model.num_key_value_heads
    shape = rf"f32\[{rows},(\d+),{model.head_dim},\d+\]"
    heads = {int(n) for n in re.findall(shape, own.rollout_text)}
    assert heads == {kv_heads // tensor}
