"""The torch peer is fair: the same game, words, answers, filter, advantages, update."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import runs
from benchmarks.peers import python_sokoban
from envs.sokoban.env import Sokoban
from tests import commands
from tests.reference.answer_oracle import parse_reply

commands.need("torch", "transformers")

from benchmarks.peers import torch_learner, torch_loop  # noqa: E402

pytestmark = pytest.mark.slow

SMALL = {
    "rollout.num_groups": 4,
    "rollout.group_size": 2,
    "rollout.max_turns": 2,
    "rollout.max_reply_tokens": 6,
    "filter.keep_fraction": 0.5,
    "learner.minibatch_rows": 4,
    "learner.microbatch_rows": 2,
}


@pytest.fixture(scope="module")
def levels():
    """Levels of ours."""
    env = Sokoban()
    keys = jax.random.split(jax.random.key(0), 8)
    return jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, env.default_params)[1]


def test_the_game_is_the_same(levels):
    """Every action from many states: picture, reward, end."""
    env, games = Sokoban(), torch_loop.games_from(levels, cols=6)
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None)))
    keys = jax.random.split(jax.random.key(1), 8)
    states, random, pushed = levels, np.random.default_rng(0), 0
    for _ in range(60):
        fields = jax.vmap(env.text_fields, (0, None))(states, env.default_params)
        solved = jax.vmap(env.is_success, (0, None))(states, env.default_params)
        for i, game in enumerate(games):
            own = {name: np.asarray(x[i]) for name, x in fields.items()}
            assert game.picture() == env.template.render(own)
            assert game.is_solved == bool(solved[i])
        actions = random.integers(0, 4, 8)
        before = states
        _, states, rewards, _, _ = step(keys, states, actions, env.default_params)
        for i, game in enumerate(games):
            if not solved[i]:
                assert game.step(actions[i]) == pytest.approx(float(rewards[i]))
        pushed += int(jnp.any(before.boxes != states.boxes, axis=1).sum())
    assert pushed > 5
    assert any(game.is_solved for game in games)


def test_the_words_are_the_same(levels):
    prompts = runs.set_up(runs.task_config("pocket,grpo", SMALL)).parts.tasks[0]
    prompts = prompts.dialogue.prompts
    env, game = Sokoban(), torch_loop.games_from(levels, cols=6)[0]
    board = env.observe(None, jax.tree.map(lambda x: x[0], levels), None, None)
    fields = {"board": np.asarray(board), "turn": 1, "actions_left": 10}
    expected = prompts.opening.render(fields)
    assert python_sokoban.opening(game.picture(), 10) == expected
    for hundredths in (-40, 0, 1090, 960, -10):
        for was_invalid, was_cut in ((0, 1), (1, 0)):
            told = fields | {
                "turn": 2,
                "reward_hundredths": hundredths,
                "was_invalid": was_invalid,
                "was_cut": was_cut,
            }
            said = python_sokoban.following(
                2,
                game.picture(),
                10,
                reward=hundredths / 100,
                was_invalid=bool(was_invalid),
                was_cut=bool(was_cut),
            )
            assert said == prompts.following.render(told)


@pytest.mark.parametrize(
    "reply",
    [
        "so</think><answer>Up||down || LEFT</answer>",
        "</think>\n <answer>Up||||Jump||Up||Up||Up||Up</answer>",
        "a</think><answer><answer>Right</think></answer>",
        "Up",
        "</think><answer></answer>",
        "</think> x <answer>Up</answer>",
        "<think></think><answer>Up</answer><answer>Down</answer>",
    ],
)
def test_answers_are_read_alike(reply):
    names, _, _ = parse_reply(reply.encode(), Sokoban().action_vocabulary, 4)
    valid = [name for name in names if name >= 0]
    expected = valid, not valid or len(valid) < len(names)
    assert python_sokoban.read_answer(reply, 4) == expected


def test_the_loop_records_what_it_sampled(model, levels):
    """Keys and values kept over the turns, ragged and padded, change no number."""
    config = runs.task_config("pocket,grpo", SMALL)
    loop = torch_loop.TorchLoop(model, config)
    episodes = loop.collect(torch_loop.games_from(levels, cols=6))
    read, mask = loop.learner.log_probs(episodes.tokens), episodes.mask
    np.testing.assert_allclose(read[mask], episodes.sample_log_probs[mask], atol=1e-4)
    assert (episodes.sample_log_probs[~mask] == 0).all()
    replies = mask.sum(1)
    assert (replies > 6).all()
    assert (replies <= 12).all()
    first = np.argmax(mask[0])
    text = loop._tokenizer.decode(episodes.tokens[0, :first])
    game = torch_loop.games_from(levels, cols=6)[0]
    assert text == python_sokoban.opening(game.picture(), 10)


def test_first_messages_and_lengths_can_be_given(model, levels):
    """As for SmolLM2: one turn, replies of one length, passes in bfloat16."""
    changes = {
        "rollout.max_turns": 1,
        "rollout.max_actions_per_episode": 4,
        "model.dtype": "bfloat16",
    }
    config = runs.task_config("pocket,grpo", SMALL | changes)
    loop = torch_loop.TorchLoop(model, config, is_forced=True)
    games = torch_loop.games_from(levels, cols=6)
    openings = [[1, 2, 3], [4, 5], *([[6, 7, 8, 9]] * (len(games) - 2))]
    episodes = loop.collect(games, openings)
    length = config.rollout.max_reply_tokens
    assert (episodes.mask.sum(1) == length).all()
    np.testing.assert_array_equal(episodes.lengths, [len(x) + length for x in openings])
    given = SimpleNamespace(tokens=episodes.tokens, loss_mask=episodes.mask)
    assert torch_loop.first_messages(given) == openings
    read, mask = loop.learner.log_probs(episodes.tokens), episodes.mask
    np.testing.assert_allclose(read[mask], episodes.sample_log_probs[mask], atol=0.1)
    assert loop.learner.update(episodes, np.arange(len(games)))["grad_norm"] > 0


def test_the_update_is_the_same(model):
    """Filter, whitened GAE, both losses and both optimizers, against our update."""
    config = runs.task_config("pocket,ppo", SMALL | {"model.path": str(model)})
    setup = runs.set_up(config)
    batch, before = runs.full_rows(setup, config)
    learner, key = setup.parts.learner, jax.random.key(3)
    peer = torch_learner.TorchLearner(model, config)
    np.testing.assert_allclose(
        peer.log_probs(np.asarray(batch.tokens)), before, atol=1e-4
    )
    order = runs.row_order(key, batch.tokens.shape[0])
    theirs = peer.update(torch_learner.as_episodes(batch), order)
    state = learner.init(setup.params, config.seed)
    state, stats, _ = learner.update(None, learner.numbers, state, batch, key)
    for name, own in runs.OWN_STATS.items():
        assert theirs[name] == pytest.approx(float(stats[own]), rel=1e-3, abs=1e-5)
    # Both went the same way: what is left between them is small against the way.
    after = runs.policy_log_probs(setup, config, state.params, batch.tokens)
    left = np.abs(peer.log_probs(np.asarray(batch.tokens)) - after)
    assert left.max() < 0.02 * np.abs(after - before).max()
    heads = state.critic.params["head"]["kernel"], peer.critic.head.weight[0]
    own, other = np.asarray(heads[0]), heads[1].detach().numpy()
    np.testing.assert_allclose(own, other, atol=0.02 * np.abs(own).max())


def test_what_it_would_do_otherwise_is_refused(model):
    config = runs.task_config("pocket,grpo", {"algo.gamma": 1.0, "kl.placement": None})
    config.algo.gamma = 0.9
    with pytest.raises(ValueError, match=r"algo.gamma = 1.0 only, not 0.9"):
        torch_learner.TorchLearner(model, config)
    config = runs.task_config("pocket,grpo", {"algo.advantage": "rloo"})
    with pytest.raises(ValueError, match=r"'grpo' and 'gae', not 'rloo'"):
        torch_learner.TorchLearner(model, config)
