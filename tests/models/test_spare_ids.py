"""Ids beyond the tokenizer, rows of a padded vocabulary: without any probability."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import bandit, sokoban
from ragen_jax import rngs
from ragen_jax.learner.logprobs import hidden_states, token_log_probs
from ragen_jax.models.families import new_config
from ragen_jax.models.hf.weights import load_config
from ragen_jax.models.lora import LoraConfig, build_lora_policy
from ragen_jax.models.policy import build_policy
from ragen_jax.models.trainable import adapters
from ragen_jax.program.build import POCKET, build_parts, build_program
from ragen_jax.rollout.sampling import sample
from ragen_jax.sft.model import build_model
from ragen_jax.text.tokenizer import load_tokenizer
from tests.models import random_models
from tests.sft import tiny

NUM_IDS, NUM_ROWS = 11, 16
MODEL = new_config(
    vocab_size=NUM_ROWS,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    tie_word_embeddings=False,
    initializer_range=0.5,
)
TOKENS = jax.random.randint(jax.random.key(1), (4, 9), 0, NUM_IDS)


@functools.cache
def network():
    """A policy that knows its ids, one that does not, and weights for spare ids."""
    policy, unaware = (build_policy(MODEL, num_ids=n) for n in (NUM_IDS, None))
    params = policy.init(jax.random.key(0))
    head = params["lm_head"]["weight"].at[NUM_IDS:].multiply(30.0)
    return policy, unaware, params | {"lm_head": {"weight": head}}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.01},
        {"temperature": 50.0},
        {"top_k": 3},
        {"top_k": NUM_IDS + 2},
        {"top_p": 0.9},
    ],
    ids=str,
)
def test_the_sampler_never_writes_them(how):
    policy, unaware, params = network()
    hidden = hidden_states(policy, params, TOKENS)
    hidden = jnp.tile(hidden.reshape(-1, hidden.shape[-1]), (4, 1))
    keys = rngs.rows(jax.random.key(2), hidden.shape[0])
    how = {"temperature": 1.0, "top_k": None, "top_p": None} | how
    wild, _ = sample(keys, unaware.logits(params, hidden), **how)
    assert (wild >= NUM_IDS).mean() > 0.2
    tokens, log_probs = sample(keys, policy.logits(params, hidden), **how)
    assert (tokens < NUM_IDS).all()
    assert len(np.unique(tokens)) > 2
    # As if the spare rows did not exist.
    alone, of_alone = sample(keys, unaware.logits(params, hidden)[:, :NUM_IDS], **how)
    np.testing.assert_array_equal(tokens, alone)
    np.testing.assert_allclose(log_probs, of_alone, atol=2e-6)


def test_the_learner_scores_the_distribution_that_is_sampled():
    policy, unaware, params = network()

    def scores(params, temperature=0.7):
        hidden = hidden_states(policy, params, TOKENS)
        settings = {"temperature": temperature, "chunk_tokens": 5}
        return token_log_probs(policy, params, hidden, TOKENS, **settings)

    log_probs, entropy = scores(params)
    hidden = hidden_states(policy, params, TOKENS)[:, :-1]
    real = unaware.logits(params, hidden)[..., :NUM_IDS] / 0.7
    expected = jax.nn.log_softmax(real)
    chosen = jnp.take_along_axis(expected, TOKENS[:, 1:, None], axis=-1)[..., 0]
    np.testing.assert_allclose(log_probs[:, 1:], chosen, atol=1e-5)
    np.testing.assert_allclose(
        entropy[:, 1:], -(jnp.exp(expected) * expected).sum(-1), atol=1e-5
    )
    # The sampler reports the same numbers: the importance ratio is 1.
    keys = rngs.rows(jax.random.key(3), hidden.shape[0] * hidden.shape[1])
    flat = policy.logits(params, hidden).reshape(-1, NUM_ROWS)
    tokens, reported = sample(keys, flat, temperature=0.7, top_k=None, top_p=None)
    learned = jax.nn.log_softmax(flat / 0.7)[jnp.arange(len(tokens)), tokens]
    np.testing.assert_allclose(reported, learned, atol=2e-6)

    gradient = jax.grad(lambda p: sum(x.sum() for x in scores(p)))(params)
    of_head = np.asarray(gradient["lm_head"]["weight"])
    assert np.isfinite(of_head).all()
    assert (of_head[NUM_IDS:] == 0).all()
    assert (of_head[:NUM_IDS] != 0).any(axis=1).all()


@pytest.mark.parametrize("num_ids", [None, NUM_ROWS])
def test_a_vocabulary_without_spare_rows_costs_nothing(num_ids):
    policy, hidden = build_policy(MODEL, num_ids=num_ids), jnp.zeros((2, 8))
    program = str(jax.make_jaxpr(policy.logits)(policy.shapes, hidden))
    assert "select_n" not in program
    assert "iota" not in program
    masked = jax.make_jaxpr(network()[0].logits)(policy.shapes, hidden)
    assert "select_n" in str(masked)


def test_adapters_know_them():
    policy, unaware, params = network()
    lora = LoraConfig(rank=2)
    hidden = hidden_states(policy, params, TOKENS)
    for adapted in (
        build_lora_policy(MODEL, lora=lora, num_ids=NUM_IDS),
        adapters(policy, lora).policy,
    ):
        logits = adapted.logits({"base": params}, hidden)
        np.testing.assert_array_equal(logits, policy.logits(params, hidden))
    free = adapters(unaware, lora).policy.logits({"base": params}, hidden)
    np.testing.assert_array_equal(free, unaware.logits(params, hidden))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model of 640 rows with a tokenizer of fewer ids, which it prefers to leave."""
    folder = tiny.write_checkpoint(tmp_path_factory.mktemp("published"))
    tensors = random_models.make_tensors(tiny.HF_CONFIG)
    table = tensors["model.embed_tokens.weight"]
    first = load_tokenizer(folder).vocab_size
    assert first < len(table)
    table[first:] *= 20
    random_models.write_folder(folder, tiny.HF_CONFIG, tensors)
    return folder


def test_the_width_is_that_of_the_tokenizer(checkpoint):
    tokenizer, model = load_tokenizer(checkpoint), load_config(checkpoint)
    config = bandit.get_config()
    config.model.path = str(checkpoint)
    parts = build_parts(config, model, tokenizer)
    assert parts.policy.num_ids == tokenizer.vocab_size < model.vocab_size
    # Measured results depend on the bits of the built-in models.
    pocket = load_config(POCKET)
    assert load_tokenizer(POCKET).vocab_size < pocket.vocab_size
    parts = build_parts(sokoban.get_config(), pocket, load_tokenizer(POCKET))
    assert parts.policy.num_ids is None


def test_fine_tuning_masks_them_too(checkpoint, tmp_path):
    model = build_model(tiny.tuning_config(checkpoint), tmp_path)
    assert model.policy.num_ids == load_tokenizer(checkpoint).vocab_size
    assert model.trainable.policy.num_ids == model.policy.num_ids


@pytest.mark.slow
def test_a_run_writes_none_and_learns_on_policy(checkpoint):
    config = bandit.get_config()
    config.update_from_flattened_dict(
        {
            "model.path": str(checkpoint),
            "rollout.num_groups": 2,
            "rollout.group_size": 4,
            "learner.minibatch_rows": 8,
            "filter.keep_fraction": 1.0,
            "evaluation.num_prompts": 2,
            "kl.placement": "loss",
        }
    )
    program = build_program(config)
    params = program.play_params(program.state)
    key = rngs.step_key(rngs.root_key(0), 0)
    batch = program.join(program.collect(params, key))
    written = np.asarray(batch.tokens)[np.asarray(batch.loss_mask)]
    assert len(written) > 100
    assert written.max() < load_tokenizer(checkpoint).vocab_size
    _, stats, _ = program.update(program.state, batch, key)
    stats = jax.device_get(stats)
    assert stats["actor/sampler_log_prob_difference"] <= 1e-5
    np.testing.assert_allclose(stats["actor/ref_kl"], 0.0, atol=1e-6)
    assert 0 < stats["actor/entropy"] < np.log(load_tokenizer(checkpoint).vocab_size)
