"""Boards among tokens: what the network sees is the picture that `lay_cells` draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.pictures import draw_cells, lay_cells
from ragen_jax.models.families import new_config, read_config
from ragen_jax.models.kv_cache import PromptRows, SharedCache, init_cache
from ragen_jax.models.lora import LoraConfig, build_lora_policy
from ragen_jax.models.policy import build_policy
from ragen_jax.models.vision_config import BoardPictures
from ragen_jax.models.vision_decoder import Sight, spread
from ragen_jax.rollout.decode import Context, Decoding, read_in_chunks
from ragen_jax.types import IDS_PER_PICTURE, PICTURE_IDS, ROW_END, TokenSpan
from tests.models.vision_models import PICTURE, hf_config, random_params

SYMBOLS = ("#", "_", "P", "O")
MEANINGS = ("wall", "floor", "you", "target")
CONFIG = read_config(hf_config("small"))
CELLS = draw_cells(SYMBOLS, MEANINGS, CONFIG.vision.cell)
GRIDS = ((3, 4), (2, 2))
KINDS = tuple(BoardPictures(i, CELLS, grid, most=3) for i, grid in enumerate(GRIDS))


def board_ids(board, kind=0):
    is_last = np.arange(board.shape[1])[None] == board.shape[1] - 1
    ids = PICTURE_IDS + kind * IDS_PER_PICTURE + board + ROW_END * is_last
    return ids.reshape(-1).tolist()


def make_boards(kind=0, seed=0):
    return np.random.RandomState(seed).randint(0, 4, (2, 3, *GRIDS[kind]))


def make_rows(boards):
    """Two rows: words, a picture, words, two pictures side by side, words."""
    random = np.random.RandomState(1)

    def words(count):
        return random.randint(3, 99, count).tolist()

    rows = []
    for first, second, third in boards:
        shown = [board_ids(board) for board in (first, second, third)]
        rows.append([*words(5), *shown[0], *words(7), *shown[1], *shown[2], *words(6)])
    return np.array(rows, np.int32)


def positions_of(tokens):
    return np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)


def run(policy, params, tokens, sight=None):
    return policy.forward(params, tokens, positions_of(tokens), None, sight)[0]


def test_a_board_is_seen_as_its_picture_is():
    params, boards = random_params(CONFIG), make_boards()
    tokens = make_rows(boards)
    ours = run(build_policy(CONFIG, pictures=KINDS[:1]), params, tokens)
    plain = build_policy(CONFIG)
    draw = jax.vmap(lay_cells, (0, None))
    pictures = draw(boards.reshape(-1, *GRIDS[0]), CELLS)
    seen = plain.see(params, pictures).reshape(2, 3, 12, -1)
    words = np.where(tokens >= PICTURE_IDS, PICTURE, tokens)
    sight = Sight(spread(seen, words == PICTURE), GRIDS[0])
    expected = run(plain, params, words, sight)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
    blind = run(plain, params, words)
    assert np.abs(np.asarray(expected - blind)).max() > 0.1


def test_games_of_two_sizes_are_seen_as_each_alone():
    params = random_params(CONFIG)
    both = build_policy(CONFIG, pictures=KINDS)
    tokens = make_rows(make_boards())
    alone = run(build_policy(CONFIG, pictures=KINDS[:1]), params, tokens)
    np.testing.assert_allclose(run(both, params, tokens), alone, rtol=0, atol=1e-6)
    small = make_boards(kind=1)[0, 0]
    row = np.array([[5, *board_ids(small, kind=1), 7, 8]], np.int32)
    alone = run(build_policy(CONFIG, pictures=KINDS[1:]), params, row)
    np.testing.assert_allclose(run(both, params, row), alone, rtol=0, atol=1e-6)
    # A picture of each in one row: positions go on after the longer side of each.
    mixed = np.array([[5, *board_ids(make_boards()[0, 0]), *row[0]]], np.int32)
    one = [both.look(params, part).embeddings for part in (mixed[:, :13], row)]
    looked = both.look(params, mixed).embeddings
    np.testing.assert_allclose(looked, np.concatenate(one, axis=1), atol=1e-5)


@pytest.mark.parametrize("chunk", [None, 5, 16])
def test_reading_in_pieces_changes_nothing(chunk):
    policy = build_policy(CONFIG, pictures=KINDS)
    params, tokens = random_params(CONFIG), make_rows(make_boards())
    num_rows, length = tokens.shape
    whole = run(policy, params, tokens)
    context = Context(
        init_cache(CONFIG, num_rows, length + 40, jnp.float32),
        jnp.zeros((num_rows, CONFIG.hidden_size)),
    )
    decoding = Decoding(
        sampler=None,
        stop_tokens=jnp.zeros(1, jnp.int32),
        max_reply_tokens=1,
        chunk_tokens=1,
        read_chunk_tokens=chunk,
    )
    # The second message ends before the last words; it was longer once, and was read
    # again from its start: what the cache held there does not count.
    starts = jnp.zeros(num_rows, jnp.int32)
    for first, end in ((0, length), (0, 24), (24, length)):
        part = jnp.pad(jnp.asarray(tokens[:, first:end]), [(0, 0), (0, 3)])
        span = TokenSpan(part, jnp.full(num_rows, end - first, jnp.int32))
        context = read_in_chunks(
            policy, params, context, span, starts + first, decoding
        )
        np.testing.assert_allclose(context.hidden, whole[:, end - 1], rtol=0, atol=1e-4)


def test_rows_that_share_a_prompt_see_its_pictures():
    policy = build_policy(CONFIG, pictures=KINDS[:1])
    params, tokens = random_params(CONFIG), make_rows(make_boards())
    # The prompts end in text; the second one is a token shorter.
    prompt_tokens, lengths = 19, jnp.array([19, 18], jnp.int32)
    rows = [tokens[i, n:][None] for i, n in enumerate((19, 18))]
    width = min(row.shape[1] for row in rows)
    rows = np.concatenate([np.repeat(row[:, :width], 2, axis=0) for row in rows])
    rows[1::2, 5:] = 9  # pictures cut short: words in their place
    rows[1, 5:], rows[3, 6:] = 9, 9
    layout = PromptRows(lengths, prompt_tokens, 2)
    prompts = tokens[:, :prompt_tokens].copy()
    starts = np.repeat(np.asarray(lengths), 2)[:, None]
    places = layout.join(positions_of(prompts), starts + positions_of(rows))
    lines = layout.join(prompts, rows)
    hidden, _ = policy.forward(params, lines, places, layout)
    ours = layout.split(hidden)[1]
    for i, row in enumerate(rows):
        before = prompts[i // 2, : lengths[i // 2]]
        alone = run(policy, params, np.concatenate([before, row])[None])[0]
        expected = alone[len(before) :]
        np.testing.assert_allclose(ours[i], expected, rtol=0, atol=1e-4)
    # Texts after prompts in a cache.
    cache = init_cache(CONFIG, 2, prompt_tokens, jnp.float32)
    _, cache = policy.forward(params, prompts, positions_of(prompts), cache)
    texts = np.tile(np.array([[11, 12, 13, 14]], np.int32), (4, 1))
    after, _ = policy.forward(
        params, texts, starts + positions_of(texts), SharedCache(cache, lengths)
    )
    for i, row in enumerate(texts):
        before = prompts[i // 2, : lengths[i // 2]]
        alone = run(policy, params, np.concatenate([before, row])[None])[0]
        np.testing.assert_allclose(after[i], alone[len(before) :], rtol=0, atol=1e-4)


def test_gradients_reach_the_drawings_embedding():
    policy, params = build_policy(CONFIG, pictures=KINDS), random_params(CONFIG)
    tokens = make_rows(make_boards())

    def loss(params):
        return jnp.mean(policy.logits(params, run(policy, params, tokens))[:, -1] ** 2)

    gradients = jax.jit(jax.grad(loss))(params)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradients["visual"]))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))


def test_adapters_see_what_the_merged_network_sees():
    lora = LoraConfig(rank=2, alpha=4.0, targets="all")
    policy = build_lora_policy(CONFIG, lora=lora, pictures=KINDS)
    base, tokens = random_params(CONFIG), make_rows(make_boards())
    adapters = jax.tree.map(lambda x: 0.1 + x, policy.init_adapters(jax.random.key(0)))
    ours = run(policy, {"base": base, "adapters": adapters}, tokens)
    plain = build_policy(CONFIG, pictures=KINDS)
    expected = run(plain, policy.merge(base, adapters), tokens)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-3)


def test_a_network_of_text_is_shown_no_pictures():
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = new_config(**sizes, num_key_value_heads=1, head_dim=4)
    with pytest.raises(ValueError, match="'qwen2' sees no pictures"):
        build_policy(config, pictures=KINDS)
