"""Templates on the device: the ids decode to the rendered text, always.

With the tokenization "rows" they are also the tokenizer's own ids of the whole text.
"""

import functools
import pathlib
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import envs
import ragen_jax
from envs.base import PlayBudget
from envs.templates import Cells, Choice, Grid, Number, Template
from ragen_jax import rngs
from ragen_jax.text import pieces
from ragen_jax.text.prompts import build_prompts
from ragen_jax.text.token_templates import TOKENIZATIONS, compile_template
from ragen_jax.text.tokenizer import load_tokenizer
from tests.pace import examples
from tests.reference.tokenizers import train_qwen_style, train_uncut

BUDGET = PlayBudget(max_turns=12, max_actions_per_turn=4, max_actions_per_episode=20)
NEW_SYMBOLS = ("W", ".", "G", "C", "B", "A", "@")
# Game, arguments that shape its states, arguments that only shape its text.
VARIANTS = (
    *((name, {}, {}) for name in envs.ENVIRONMENTS),
    ("bandit", {"split": "test"}, {}),
    ("frozen_lake", {}, {"observation": "coord"}),
    ("frozen_lake", {}, {"observation": "grid_coord"}),
    ("frozen_lake", {}, {"observation": "relative"}),
    ("frozen_lake", {}, {"symbols": ("A", "B", "C", "D", "E", "é")}),
    ("sokoban", {}, {"observation": "coord"}),
    ("sokoban", {"num_boxes": 2}, {"observation": "relative"}),
    ("sokoban", {"num_boxes": 2}, {"observation": "grid_coord"}),
    ("sokoban", {}, {"symbols": NEW_SYMBOLS}),
)
POCKET = pathlib.Path(ragen_jax.__file__).parent / "pocket"
NUM_ROWS = 48
WALLED = Grid("board", ("#", "_", "O", "√", "X", "P", "S"), 6, 5, border=0)
NUMBERS = Grid("board", (".", "2", "4", "8", "16"), 4, 3, separator=" ")
OPEN = Grid("board", ("P", "_", "O", "G", "X", "√"), 4, 4)


def run(template, tokenizer, tokenization, fields):
    """Ids of every row as lists; padding is checked to be zeros within bounds."""
    compiled = compile_template(template, tokenizer, tokenization)
    fields = jax.tree.map(jnp.asarray, fields)
    span = jax.jit(jax.vmap(compiled.tokens))(fields)
    tokens, lengths = np.asarray(span.tokens), np.asarray(span.length)
    assert tokens.shape[1] == compiled.max_tokens
    assert lengths.max() <= compiled.max_tokens
    assert not tokens[np.arange(tokens.shape[1])[None, :] >= lengths[:, None]].any()
    return [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]


def check(template, tokenizer, tokenization, fields):
    fields = jax.device_get(fields)
    rows = run(template, tokenizer, tokenization, fields)
    for i, ids in enumerate(rows):
        text = template.render({name: value[i] for name, value in fields.items()})
        assert tokenizer.decode(ids) == text
        if tokenization == "rows":
            assert ids == tokenizer.encode(text)


def message_fields(num_rows, seed=0):
    """Random values of the fields that every dialogue has."""
    rng = np.random.default_rng(seed)
    bounds = {
        "turn": (1, BUDGET.max_turns),
        "actions_left": (0, BUDGET.max_actions_per_episode),
        "reward_hundredths": (-250, 1250),
        "was_invalid": (0, 1),
        "was_cut": (0, 1),
    }
    return {
        name: rng.integers(low, high, num_rows, np.int32, endpoint=True)
        for name, (low, high) in bounds.items()
    }


def random_boards(grid, num_rows, seed=0):
    rng = np.random.default_rng(seed)
    shape = (num_rows, grid.rows, grid.cols)
    boards = rng.integers(0, len(grid.symbols), shape, np.int32)
    if grid.border is not None:
        boards[:, [0, -1]] = boards[:, :, [0, -1]] = grid.border
    return boards


@functools.cache
def played_states(name, shape):
    """States after 0 to 8 random actions, one row each."""
    env = envs.make(name, **dict(shape))
    params = env.default_params

    def play(key, num_steps):
        def step(i, state):
            step_key, action_key = jax.random.split(jax.random.fold_in(key, i))
            action = jax.random.randint(action_key, (), 0, env.num_actions)
            return env.step_env(step_key, state, action, params)[1]

        state = env.reset_env(key, params)[1]
        return jax.lax.fori_loop(0, num_steps, step, state)

    keys = rngs.rows(jax.random.key(7), NUM_ROWS)
    return jax.jit(jax.vmap(play))(keys, jnp.arange(NUM_ROWS) % 9)


@pytest.mark.parametrize(
    ("style", "tokenization"),
    [("full", "rows"), ("example", "rows"), ("terse", "symbols")],
)
@pytest.mark.parametrize(("name", "shape", "look"), VARIANTS)
def test_messages_of_every_environment(
    tokenizer, name, shape, look, style, tokenization
):
    env = envs.make(name, **shape, **look)
    states = played_states(name, tuple(shape.items()))
    fields = jax.vmap(env.text_fields, (0, None))(states, env.default_params)
    fields = jax.device_get(fields) | message_fields(NUM_ROWS)
    prompts = build_prompts(env, style=style, budget=BUDGET, length_hint_words=60)
    check(prompts.following, tokenizer, tokenization, fields)
    if not look:
        check(prompts.opening, tokenizer, tokenization, fields)


@pytest.mark.parametrize("name", envs.ENVIRONMENTS)
def test_the_pocket_tokenizer_carries_every_environment(name):
    tokenizer = load_tokenizer(POCKET)
    env = envs.make(name)
    states = played_states(name, ())
    fields = jax.vmap(env.text_fields, (0, None))(states, env.default_params)
    fields = jax.device_get(fields) | message_fields(NUM_ROWS)
    prompts = build_prompts(env, style="terse", budget=BUDGET, length_hint_words=60)
    check(prompts.following, tokenizer, "symbols", fields)
    for part in env.template.parts:
        for symbol in part.symbols if isinstance(part, Grid) else ():
            # Numbers have a token for each digit, as Qwen's pre-tokenizer cuts them.
            assert len(tokenizer.encode(symbol)) == (
                len(symbol) if symbol.isdigit() else 1
            )


@pytest.mark.parametrize("symbols", [WALLED.symbols, NEW_SYMBOLS])
@pytest.mark.parametrize("border", [0, None])
def test_random_boards_in_messages_are_the_tokenizers_own_ids(
    tokenizer, symbols, border
):
    grid = Grid("board", symbols, 5, 5, border)
    turn, reward = Number("turn", 1, 12), Number("reward_hundredths", -999, 9999, 2)
    head = Template(("<|im_start|>user\nTurn ", turn, "\nState:\n", grid, grid))
    template = head + Template(("Reward: ", reward, "\n<|im_end|>\n"))
    fields = message_fields(400) | {"board": random_boards(grid, 400)}
    check(template, tokenizer, "rows", fields)


def test_symbols_are_one_piece_per_cell(tokenizer):
    board = random_boards(WALLED, 1)
    (ids,) = run(Template((WALLED,)), tokenizer, "symbols", {"board": board})
    texts = ["".join(WALLED.symbols[i] for i in row) + "\n" for row in board[0]]
    assert ids == [i for cell in "".join(texts) for i in tokenizer.encode(cell)]
    assert ids != tokenizer.encode("".join(texts))


@pytest.mark.parametrize("separator", [" ", ", ", "|"])
@pytest.mark.parametrize("border", [0, None])
@pytest.mark.parametrize(("rows", "cols"), [(4, 3), (3, 4), (2, 2), (3, 1)])
def test_boards_with_separators(tokenizer, separator, border, rows, cols):
    grid = Grid("board", NUMBERS.symbols, rows, cols, border, separator=separator)
    template = Template(("State:\n", grid, "Turn ", Number("turn", 1, 12), "\n", grid))
    fields = message_fields(100) | {"board": random_boards(grid, 100)}
    for tokenization in TOKENIZATIONS:
        check(template, tokenizer, tokenization, fields)


def test_separators_are_separate_pieces(tokenizer):
    """So a symbol has the same tokens at every place in a row."""
    board = random_boards(NUMBERS, 1)
    (ids,) = run(Template((NUMBERS,)), tokenizer, "symbols", {"board": board})
    (rows,) = Template((NUMBERS,)).read_boards(NUMBERS.render(board[0]))
    texts = [p for row in rows for cell in row for p in (cell, " ")]
    texts[2 * NUMBERS.cols - 1 :: 2 * NUMBERS.cols] = ["\n"] * NUMBERS.rows
    assert ids == [i for text in texts for i in tokenizer.encode(text)]


def test_symbols_of_several_tokens(tmp_path):
    """With too few merges "√" is three tokens, so cells differ in length."""
    tokenizer = load_tokenizer(train_qwen_style(tmp_path / "bytes", vocab_size=256))
    assert len(tokenizer.encode("√")) == 3
    template = Template(("Map:\n", WALLED, "Turn ", Number("turn", 1, 12)))
    fields = message_fields(50) | {"board": random_boards(WALLED, 50)}
    for tokenization in TOKENIZATIONS:
        check(template, tokenizer, tokenization, fields)


@pytest.mark.parametrize("border", [0, None])
@pytest.mark.parametrize(("rows", "cols"), [(2, 4), (4, 2), (3, 3), (1, 1)])
def test_boards_with_hardly_any_inside(tokenizer, rows, cols, border):
    grid = Grid("board", WALLED.symbols, rows, cols, border)
    fields = {"board": random_boards(grid, 20)}
    for tokenization in TOKENIZATIONS:
        check(Template((grid, "end")), tokenizer, tokenization, fields)


@pytest.mark.parametrize(
    ("minimum", "maximum", "decimals"),
    [(1, 9, 0), (0, 120, 0), (-5, 5, 0), (-99_999, 99_999, 2), (0, 25, 1), (-7, 0, 3)],
)
def test_numbers(tokenizer, minimum, maximum, decimals):
    number = Number("n", minimum, maximum, decimals)
    template = Template(
        ("Value ", number, ".\nNext: ", number, "\n", number, "<|im_end|>")
    )
    compiled = compile_template(template, tokenizer, "rows")
    tokens = jax.jit(compiled.tokens)

    @given(st.integers(minimum, maximum))
    @settings(deadline=None, max_examples=examples(60))
    def agrees(value):
        span = tokens({"n": jnp.int32(value)})
        ids = np.asarray(span.tokens)[: int(span.length)].tolist()
        assert ids == tokenizer.encode(template.render({"n": value}))

    agrees()
    outside = tokens({"n": jnp.int32(maximum + 1)})
    np.testing.assert_array_equal(
        outside.tokens, tokens({"n": jnp.int32(maximum)}).tokens
    )


def test_rewards_have_no_float_noise(tokenizer):
    template = Template((Number("n", -100_00, 100_00, 2),))
    shown = {1090: "10.9", -10: "-0.1", 0: "0", 5: "0.05", -205: "-2.05", 1000: "10"}
    fields = {"n": np.array(list(shown), np.int32)}
    rows = run(template, tokenizer, "symbols", fields)
    assert [tokenizer.decode(ids) for ids in rows] == list(shown.values())


@pytest.mark.parametrize(("rows", "cols", "max_cells"), [(3, 4, 12), (2, 12, 3)])
def test_cells(tokenizer, rows, cols, max_cells):
    cells = Cells("holes", "Holes", rows, cols, max_cells)
    template = Template(("Map:\n", cells, cells, "end"))
    compiled = compile_template(template, tokenizer, "rows")
    tokens = jax.jit(compiled.tokens)

    @given(st_numpy.arrays(np.int32, (rows, cols), elements=st.integers(0, 1)))
    @settings(deadline=None, max_examples=examples(60))
    def agrees(marks):
        marks[np.cumsum(marks).reshape(marks.shape) > max_cells] = 0
        span = tokens({"holes": jnp.asarray(marks)})
        ids = np.asarray(span.tokens)[: int(span.length)].tolist()
        assert ids == tokenizer.encode(template.render({"holes": marks}))

    agrees()


def test_pieces_that_merge_are_refused_by_name(tmp_path):
    """Without a pre-tokenizer the line ends merge with the next row."""
    tokenizer = load_tokenizer(train_uncut(tmp_path / "uncut"))
    template = Template(("State:\n", OPEN))
    words = r"'board' '[^\\]+\\n' and field 'board' '[^\\]+\\n' may touch"
    with pytest.raises(ValueError, match=words) as error:
        compile_template(Template((OPEN,)), tokenizer, "rows")
    assert "prompt.tokenization='symbols'" in str(error.value)
    fields = {"board": random_boards(OPEN, 50)}
    check(template, tokenizer, "symbols", fields)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (("A\n", Choice("c", ("yes.", "!")), "\nB"), "'yes.' and literal '\\nB'"),
        (("A\n", Choice("c", ("", "\nyes")), "B"), "literal 'A\\n' and field 'c'"),
        (("go", Choice("c", ("", "x")), "up"), "literal 'go' and literal 'up'"),
        (("Map: ", OPEN), "literal 'Map: ' and field 'board' '"),
        ((Number("n", 0, 9), "0.", Choice("c", ("", "!"))), "literal '0.' and"),
    ],
)
def test_cuts_inside_a_token_are_refused(tmp_path, parts, names):
    # Enough merges to merge everything that the pre-tokenizer leaves together.
    texts = ("yes.\nB", "A\n\nyes", "goup", " PP", "0.!")
    folder = train_qwen_style(tmp_path / "t", texts=texts, vocab_size=900)
    tokenizer = load_tokenizer(folder)
    with pytest.raises(ValueError, match=re.escape(names)):
        compile_template(Template(parts), tokenizer, "rows")
    compile_template(Template(parts), tokenizer, "symbols")


def test_large_tables_are_checked_by_representatives():
    """One piece stands for those with the same characters and tokens at the border."""
    texts = [f"{a}{b}{c}\n" for a in "ab" for b in "cd" for c in map(str, range(50))]
    ids = {text: [ord(text[0]), *map(ord, text[1:])] for text in texts}
    joints = pieces.Joints(dict.fromkeys(texts), dict.fromkeys(texts), {}, False)
    few = joints.representatives(ids)
    assert {text[:2] for text in few.first} == {"ac", "ad", "bc", "bd"}
    assert {text[-2:] for text in few.last} == {f"{i}\n" for i in range(10)}
    assert len(few.first) == 4
    ids["ac7\n"] = [1]
    assert "ac7\n" in joints.representatives(ids).first


def test_a_text_the_tokenizer_changes_is_refused(qwen_folder, tmp_path):
    backend = hf.Tokenizer.from_file(str(qwen_folder / "tokenizer.json"))
    backend.normalizer = hf.normalizers.Lowercase()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    for tokenization in TOKENIZATIONS:
        with pytest.raises(ValueError, match=r"turns 'P.*' into 'p.*'"):
            compile_template(Template((OPEN,)), tokenizer, tokenization)


def test_tables_over_the_limit_say_what_to_do(tokenizer):
    wide = Grid("board", WALLED.symbols, 4, 9, border=0)
    with pytest.raises(ValueError, match=r"823543 entries.*tokenization='symbols'"):
        compile_template(Template((wide,)), tokenizer, "rows")
    compile_template(Template((wide,)), tokenizer, "symbols")
    with pytest.raises(ValueError, match="'n' reaches 100000 with 0"):
        compile_template(Template((Number("n", 0, 100_000),)), tokenizer, "symbols")
    with pytest.raises(ValueError, match=r"'words' is unknown.*symbols, rows"):
        compile_template(Template((wide,)), tokenizer, "words")


def test_a_missing_field_is_a_key_error(tokenizer):
    compiled = compile_template(Template((OPEN,)), tokenizer, "symbols")
    with pytest.raises(KeyError, match="board"):
        compiled.tokens({"map": jnp.zeros((4, 4), jnp.int32)})


def test_templates_are_arguments_that_trace_once(tokenizer):
    def text(word):
        return Template((word, " ", Choice("c", ("now", "then")), "\n", OPEN))

    @jax.jit
    @chex.assert_max_traces(n=1)
    def tokens(template, fields):
        return jax.vmap(template.tokens)(fields)

    up, go = (compile_template(text(w), tokenizer, "rows") for w in "ug")
    for template, word, seed in ((up, "u", 1), (go, "g", 2), (up, "u", 3)):
        boards = random_boards(OPEN, 5, seed)
        chosen = np.arange(5) % 2
        fields = {"board": jnp.asarray(boards), "c": jnp.asarray(chosen, jnp.int32)}
        span = tokens(template, fields)
        ids = np.asarray(span.tokens)[4, : int(span.length[4])].tolist()
        row = {"board": boards[4], "c": chosen[4]}
        assert tokenizer.decode(ids) == text(word).render(row)
