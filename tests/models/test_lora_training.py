"""Adapters in use: sampler and learner agree, only adapters are differentiated."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ragen_jax import rngs
from ragen_jax.devices import sharding
from ragen_jax.learner.logprobs import hidden_states, token_log_probs
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.lora import (
    LINEAR_NAMES,
    LoraConfig,
    adapter_axes,
    build_lora_policy,
)
from ragen_jax.models.policy import build_policy
from ragen_jax.rollout.decode import Context, Decoding, decode_reply, read
from ragen_jax.rollout.sampling import sample
from ragen_jax.types import TokenSpan
from tests.models.random_adapters import (
    DISTINCT,
    EVEN,
    RANK,
    as_our_tree,
    load_case,
    make_adapters,
    num_adapter_params,
    random_adapters,
)
from tests.models.random_models import (
    CASES,
    make_tokens,
)


@pytest.mark.parametrize("slots_last", [True, False])
@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize(
    "name", ["own_head_size", pytest.param("small_tied", marks=pytest.mark.slow)]
)
def test_the_sampler_agrees_with_the_learner(name, is_merged, slots_last):
    """With either cache: kernels for single tokens know no adapters."""
    config, base, _ = load_case(name)
    learner = build_lora_policy(config, lora=LoraConfig(rank=RANK, alpha=2.0))
    adapters = as_our_tree(make_adapters(CASES[name], LINEAR_NAMES))
    params = {"base": base, "adapters": adapters}
    if is_merged:
        player, played = build_policy(config), learner.merge(base, adapters)
    else:
        player, played = learner, learner.cast_params(params)
    prompt = jnp.asarray(make_tokens(config.vocab_size)[:, :9])
    rows, width = prompt.shape

    @jax.jit
    def play(played, prompt):
        cache = init_cache(config, rows, 24, player.dtype, slots_last=slots_last)
        empty = Context(cache, jnp.zeros((rows, config.hidden_size)))
        lengths = jnp.full(rows, width)
        span = TokenSpan(prompt, lengths)
        _, reply = decode_reply(
            player,
            played,
            read(player, played, empty, span, jnp.zeros(rows, jnp.int32)),
            lengths,
            jnp.ones(rows, bool),
            rngs.rows(jax.random.key(2), rows),
            Decoding(
                sampler=functools.partial(
                    sample, temperature=1.0, top_k=None, top_p=None
                ),
                stop_tokens=jnp.asarray([-1]),
                max_reply_tokens=12,
                chunk_tokens=4,
            ),
        )
        return reply

    reply = play(played, prompt)
    assert reply.length.tolist() == [12] * rows
    whole = jnp.concatenate([prompt, reply.tokens], axis=1)
    learned = log_probs_of(learner, params, whole)
    np.testing.assert_allclose(reply.log_probs, learned[:, width:], rtol=0, atol=1e-5)


def log_probs_of(policy, params, tokens, row_sharding=None):
    hidden = hidden_states(policy, params, tokens, row_sharding)
    log_probs, _ = token_log_probs(
        policy, params, hidden, tokens, temperature=1.0, chunk_tokens=32
    )
    return log_probs


def products(jaxpr):
    """Shapes of all that a program multiplies out or scatters, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "scatter-add"):
            yield from (tuple(variable.aval.shape) for variable in equation.outvars)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from products(getattr(value, "jaxpr", value))


def _is_jaxpr(value) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


@pytest.mark.parametrize("remat", [None, "layers"])
def test_no_gradient_of_the_base_is_computed(remat):
    lora = LoraConfig(rank=3)
    policy = build_lora_policy(DISTINCT, lora=lora, remat=remat)
    params = policy.init(jax.random.key(0))
    tokens = jnp.asarray(make_tokens(DISTINCT.vocab_size)[:2, :7])
    positions = jnp.broadcast_to(jnp.arange(7)[None], tokens.shape)

    def loss(adapters, base):
        params = {"base": base, "adapters": adapters}
        hidden, _ = policy.forward(params, tokens, positions, None)
        return jnp.mean(jnp.square(policy.logits(params, hidden)))

    def computed(argnums):
        gradient = jax.jit(jax.grad(loss, argnums))
        traced = gradient.trace(params["adapters"], params["base"])
        output_bytes = traced.lower().compile().memory_analysis().output_size_in_bytes
        shapes = set(products(traced.jaxpr.jaxpr))
        return shapes | {shape[::-1] for shape in shapes}, output_bytes

    matrices = {x.shape for x in jax.tree.leaves(params["base"]) if x.ndim == 2}
    assert len(matrices) == 6  # q; k and v; o; gate and up; down; embedding and head
    adapters = {x.shape for x in jax.tree.leaves(params["adapters"])}
    shapes, output_bytes = computed(0)
    assert adapters <= shapes
    assert not matrices & shapes
    # The rest is the tuple that holds the arrays.
    assert output_bytes == pytest.approx(4 * num_adapter_params(DISTINCT, lora), 0.02)
    # The same search does find them where the base is differentiated, too.
    shapes, _ = computed((0, 1))
    assert matrices <= shapes


def test_only_second_matrices_move_first():
    """At the start `lora_b` is zero: so is the gradient of `lora_a`, not its own."""
    policy = build_lora_policy(DISTINCT, lora=LoraConfig(rank=3))
    params = policy.init(jax.random.key(0))
    tokens = jnp.asarray(make_tokens(DISTINCT.vocab_size))

    @jax.jit
    @jax.grad
    def gradient(adapters):
        params_here = params | {"adapters": adapters}
        return jnp.mean(log_probs_of(policy, params_here, tokens))

    for path, leaf in jax.tree.leaves_with_path(gradient(params["adapters"])):
        assert bool(np.any(leaf)) == (path[-1].key == "lora_b"), path


@pytest.mark.slow
def test_devices_do_not_matter():
    lora = LoraConfig(rank=3, alpha=3.0)
    policy = build_lora_policy(EVEN, lora=lora)
    base = policy.init(jax.random.key(0))["base"]
    adapters = random_adapters(policy, jax.random.key(1))
    tokens = jax.random.randint(jax.random.key(2), (8, 12), 0, EVEN.vocab_size)
    axes = {
        "base": build_policy(EVEN).logical_axes,
        "adapters": adapter_axes(EVEN, lora),
    }

    def gradient(data: int, fsdp: int, tensor: int):
        mesh = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
        rows = sharding.by_rows(mesh)
        params = {"base": base, "adapters": adapters}
        params = jax.device_put(params, sharding.param_shardings(params, axes, mesh))

        @jax.jit
        def compute(base, adapters, tokens):
            def loss(adapters):
                params = {"base": base, "adapters": adapters}
                return jnp.mean(log_probs_of(policy, params, tokens, rows))

            return jax.value_and_grad(loss)(adapters), policy.merge(base, adapters)

        placed = jax.device_put(tokens, rows)
        return params, compute(params["base"], params["adapters"], placed)

    _, expected = gradient(1, 1, 1)
    params, found = gradient(2, 2, 2)
    down = params["adapters"]["layers"]["0"]["mlp"]["down_proj"]
    assert down["lora_a"].sharding.spec == PartitionSpec("tensor", None)
    assert down["lora_b"].sharding.spec == PartitionSpec(None, "fsdp")
    chex.assert_trees_all_close(
        jax.device_get(found), jax.device_get(expected), atol=1e-6, rtol=1e-5
    )
