"""The host's turn loop plays the compiled rollout's episodes, on tokens and in text."""

import asyncio
import itertools
import json

import jax
import numpy as np
import pytest

from configs import bandit, countdown, game2048
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import BUILT_IN
from ragen_jax.rollout.collect import GivenSettings, make_collect
from ragen_jax.rollout.host.loop import TokenEpisodes, make_token_game, play_turns
from ragen_jax.rollout.host.text import ChatReply
from ragen_jax.rollout.keys import rollout_keys, spread_levels
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.numbers import rollout_numbers
from ragen_jax.tasks.build import build_task
from ragen_jax.tasks.specs import env_specs
from ragen_jax.text.messages import in_markup, strip_prefix
from ragen_jax.text.tokenizer import load_tokenizer
from tests.rollout import players

# With replies of every kind, as in `tests/rollout`.
SEED = 36
END, OTHER_END = "<|im_end|>", "<|endoftext|>"
# Cases that `tests/rollout` compiles too.
LAKE = ("frozen_lake", "bpe", "full", "single_turn", 9)
CASES = [players.WINDOWS, pytest.param(LAKE, marks=pytest.mark.slow)]


def make_host_collect(
    env,
    env_params,
    policy,
    *,
    mesh,
    num_groups,
    group_size,
    rules,
    temperature,
    top_k,
    top_p,
    **decoding,
):
    """The rollouts of `make_collect` by the turn loop of the host."""
    del num_groups
    layout = RowLayout(mesh, group_size)
    game = make_token_game(env, policy, layout, rules, **decoding)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    numbers = rollout_numbers(rules, **sampling)
    given = GivenSettings(env_params, numbers, np.bool_(True))

    def collect(params, dialogue, keys):
        episodes = TokenEpisodes(
            game, (params, given), dialogue, spread_levels(keys, group_size)
        )
        return asyncio.run(play_turns(episodes, episodes.reply))

    return collect


def chat_game(case):
    name, _, style, context, turns = case
    env, _ = players.game(name)
    return players.chat_game(
        env, env.default_params, players.LIMITS, style, context, turns
    )


@pytest.mark.slow
def test_the_host_loop_equals_the_compiled_rollout_bit_by_bit():
    """Of windows; whole dialogues are those of the games below."""
    case = players.WINDOWS
    compiled = players.collected(case)
    collect = players.collector(case[0], make=make_host_collect)
    params = players.speaker_params(*case[:2])
    on_host = collect(params, players.dialogue_of(case), players.keys_of(case))
    assert compiled.turns.played[:, 1:].any()
    players.check_equal_bits(compiled, on_host)


@pytest.mark.slow
@pytest.mark.parametrize("task", [bandit, countdown, game2048])
def test_array_games_are_played_by_the_host_loop_bit_by_bit(task):
    """With the pocket models, which play: their replies run actions.

    Names that differ by level, answers that the game reads, chance.
    """
    config = task.get_config()
    if config.rollout.max_turns > 3:
        config.rollout.update(max_turns=3, max_actions_per_episode=3)
    folder = BUILT_IN[config.model.path]
    model, params = load_checkpoint(folder)
    task = build_task(config, env_specs(config)[0], load_tokenizer(folder))
    keys = rollout_keys(jax.random.key(SEED), 4, 2)
    compiled, on_host = (
        make(
            task.env,
            task.params,
            build_policy(model),
            mesh=make_mesh(data=1, fsdp=1, tensor=1),
            num_groups=4,
            group_size=2,
            rules=task.rules,
            temperature=1.0,
            top_k=None,
            top_p=None,
            decode_chunk_tokens=4,
        )(params, task.dialogue, keys)
        for make in (make_collect, make_host_collect)
    )
    assert (compiled.turns.num_executed > 0).any()
    players.check_equal_bits(compiled, on_host)


def with_one_ending(record):
    """Endpoints say that a reply has ended, not with which token."""
    text = json.dumps(record).replace(OTHER_END + END, END)
    turns = json.loads(text)["turns"]
    for turn, following in itertools.pairwise([*turns, {"observation": ""}]):
        if turn["reply"].endswith(OTHER_END):
            turn["reply"] = turn["reply"].removesuffix(OTHER_END) + END
            following["observation"] = following["observation"].removeprefix(END)
    return record | {"turns": turns}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_episode_is_the_rollout_s(case):
    records, keys = players.records_of(case), players.keys_of(case)
    game = chat_game(case)
    levels = game.levels(keys)
    sent = []
    for record in map(with_one_ending, records):

        async def ask(turn, messages, record=record):
            sent.append(messages)
            told = record["turns"][turn]
            text = told["reply"].removesuffix(END)
            finish = "length" if told["is_cut"] else "stop"
            return ChatReply(text, finish, 10, 4, told["reply_tokens"], "scripted")

        level = jax.tree.map(lambda x, r=record: x[r["row"] // 2], levels)
        trajectory, found = players.play_chat(
            game, level, keys.noise[record["row"]], ask
        )
        assert trajectory.tokens.shape == (1, 0)
        assert int(trajectory.turns.played.sum()) == len(record["turns"])
        assert players.of_both(found) == players.of_both(record)
        assert found["sampled_tokens"] == record["sampled_tokens"]
        assert found["prompt_tokens"] == 10 * len(record["turns"])
    turns = [turn for record in records for turn in record["turns"]]
    for kind in ("valid", "effective", "penalty", "is_cut"):
        assert any(turn[kind] for turn in turns), kind
    for messages in sent:
        roles = [message["role"] for message in messages]
        assert roles == ["system", *["user", "assistant"] * len(roles)][: len(roles)]
        assert roles[-1] == "user"
        assert not any("<|im_" in message["content"] for message in messages)


def test_a_whole_dialogue_in_markup_is_the_rollout_s_text():
    case = players.SOKOBAN
    records = players.records_of(case)
    record = next(with_one_ending(r) for r in records if len(r["turns"]) == 3)
    game, told, written = chat_game(case), [], ""

    async def ask(turn, messages):
        nonlocal written
        assert in_markup(messages, "<think>") == written + _said(record, turn)
        written += _said(record, turn) + record["turns"][turn]["reply"]
        told.append(turn)
        text = record["turns"][turn]["reply"].removesuffix(END)
        is_cut = record["turns"][turn]["is_cut"]
        return ChatReply(text, "length" if is_cut else "stop", 1, 0, 1, "scripted")

    keys = players.keys_of(case)
    level = jax.tree.map(lambda x: x[record["row"] // 2], game.levels(keys))
    players.play_chat(game, level, keys.noise[record["row"]], ask)
    assert told == [0, 1, 2]


def _said(record, turn):
    return record["turns"][turn]["observation"]


def test_the_forced_prefix_may_be_there_or_not():
    assert strip_prefix("<think>a</think>", "<think>") == "a</think>"
    assert strip_prefix("\n <think>a", "<think>") == "a"
    assert strip_prefix(" a<think>", "<think>") == " a<think>"
    assert strip_prefix("", "<answer>") == ""
    # The prompt could not begin the answer: the reply's own tag does.
    for before in ("", "Sure! ", "<think>Up or <answer>Down</answer>?</think>\n"):
        assert strip_prefix(f"{before}<answer>Up</answer>", "<answer>") == "Up</answer>"
    named = "I write <answer> tags: <answer>Up</answer> An <answer> is enough."
    assert strip_prefix(named, "<answer>").startswith("Up</answer>")
    cut = "<think>Maybe <answer>Up</answer>? No, because"
    assert strip_prefix(cut, "<answer>") == "<think>Maybe <answer>Up"
    assert strip_prefix("<think>Down</think>Up</answer>", "<answer>") == "Up</answer>"
    assert strip_prefix("Up</answer>", "<answer>") == "Up</answer>"
