"""The device parser against the regex parser, on tidy and on hostile replies."""

import dataclasses
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.text.answers import build_parser
from ragen_jax.text.byte_strings import LONG_TOKEN_BYTES, shorten_token
from tests.reference.answer_oracle import LITERALS, parse_reply

NAMES = ("Up", "Down", "Left", "Right")
MAX_ACTIONS = 2
MAX_TOKENS = 24
NUM_ROWS = 2048


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The part of a tokenizer that the parser needs."""

    token_bytes: list[bytes]


def small_vocabulary() -> Vocabulary:
    """All bytes, three special tokens, and tokens that cut tags in odd places."""
    pieces = [
        *LITERALS[:4],
        *(b"</", b"<thi", b"nk>", b"></", b"><answer", b"answer>", b"wer></", b"|im_"),
        *(b" || ", b"||", b"|||", b"Up", b" Down", b"Left", b"RIGHT", b"up ", b"\n\n"),
        *("é".encode(), "√".encode(), "√".encode()[:2], b" " * 9, b" " * 40, b"\t\x0b"),
    ]
    return Vocabulary([*(bytes([i]) for i in range(256)), b"", b"", b"", *pieces])


VOCABULARY = small_vocabulary()
SPECIAL = 256
FRAGMENTS = [
    *LITERALS,
    *(b"</think><answer>", b"</think> \n<answer>", b"</answer>"),
    *(b"</think>", b"<answer>", b"</answer>"),
    *(b"<think", b"</answer", b"answer>", b"</THINK>", b"<Answer>", b"</ans", b"wer>"),
    *(b"<thi", b"nk>", b"<an", b"swer>", b"<|im_", b"end|>", b"start|>", b"</th", b"<"),
    *(b"||", b"|||", b"||||", b"|", b" || ", b"||||||||", b">"),
    *(b"Up", b"up", b"DOWN", b"Left", b" Right ", b"Upp", b"U", b"p", b"Jump"),
    *(b" ", b"\n", b" " * 5, b" " * 40, b"\t\r\n\x0b\x0c", b"\x1c", b"\x85", b"\xa0"),
    *(b"\0", "é".encode(), "√".encode(), b"\xe2\x88", b"\xff", b""),
]
OPENINGS = [b"", b"</think><answer>", b"x</think>\n<answer>", b"</think>" + b" " * 30]


def tokenize(reply: bytes, draw: random.Random) -> list[int]:
    """Random token split: at each byte any token that fits, specials thrown in."""
    longest = max(map(len, VOCABULARY.token_bytes))
    by_bytes = {token: i for i, token in enumerate(VOCABULARY.token_bytes) if token}
    tokens, at = [], 0
    while at < len(reply):
        if draw.random() < 0.03:
            tokens.append(SPECIAL + draw.randrange(3))
        sizes = [
            size
            for size in range(1, min(longest, len(reply) - at) + 1)
            if reply[at : at + size] in by_bytes
        ]
        size = max(sizes) if draw.random() < 0.8 else draw.choice(sizes)
        tokens.append(by_bytes[reply[at : at + size]])
        at += size
    return tokens


def hostile_reply(draw: random.Random) -> list[int]:
    """Tokens of a reply near to, in or beyond the form, with some random bytes."""
    reply = draw.choice(OPENINGS)
    reply += b"".join(draw.choices(FRAGMENTS, k=draw.randrange(9)))
    reply += draw.randbytes(draw.choice([0, 0, 0, 1, 3]))
    if draw.random() < 0.7:
        reply += b"</answer>" + draw.choice([b"", b"</answer>", b" more"])
    return tokenize(reply, draw)


def pad(rows: list[list[int]], num_tokens: int) -> tuple[jax.Array, jax.Array]:
    """Rows cut at the length limit, with junk after their tokens."""
    tokens = np.full((len(rows), num_tokens), ord("|"), np.int32)
    lengths = np.array([min(len(row), num_tokens) for row in rows], np.int32)
    for i, row in enumerate(rows):
        tokens[i, : lengths[i]] = row[:num_tokens]
    return jnp.asarray(tokens), jnp.asarray(lengths)


TRACED = []


@jax.jit
def parse_rows(parser, tokens, lengths):
    TRACED.append(tokens.shape)
    return jax.vmap(lambda row, length: parser.parse(row, length))(tokens, lengths)


def assert_agrees(parser, vocabulary, names, rows, num_tokens) -> int:
    """Compares every field with the oracle; returns how many rows had the form."""
    tokens, lengths = pad(rows, num_tokens)
    got = jax.device_get(parse_rows(parser, tokens, lengths))
    for i, row in enumerate(rows):
        reply = b"".join(
            vocabulary.token_bytes[token]
            if token < len(vocabulary.token_bytes)
            else b""
            for token in row[:num_tokens]
        )
        listed, num_listed, has_format = parse_reply(
            reply, names, parser.max_actions, thinking=parser.thinking
        )
        missing = parser.max_actions - len(listed)
        assert got.names[i].tolist() == listed + [-1] * missing, reply
        assert got.num_names[i] == len(listed), reply
        assert got.num_listed[i] == num_listed, reply
        assert got.has_format[i] == has_format, reply
    return int(got.has_format.sum())


def small_parser(names=NAMES, **options):
    return build_parser(
        VOCABULARY,
        names,
        max_actions_per_turn=MAX_ACTIONS,
        max_reply_tokens=MAX_TOKENS,
        **options,
    )


@pytest.fixture(scope="module")
def parser():
    return small_parser()


def parse_bytes(parser, reply: bytes):
    """Parses one reply, token by token of one byte where no longer one fits."""
    tokens = tokenize(reply, random.Random(0))
    assert len(tokens) <= MAX_TOKENS
    got = jax.device_get(parse_rows(parser, *pad([tokens] * NUM_ROWS, MAX_TOKENS)))
    names = got.names[0][: got.num_names[0]].tolist()
    return names, int(got.num_listed[0]), bool(got.has_format[0])


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"a</think> <answer>Up || Down||Left</answer> extra", ([0, 1], 3, True)),
        (b"a</think>x<answer>Up</answer>", ([], 0, False)),
        (b"a</think><answer>Up</answer>", ([0], 1, True)),
        (b"</think>\n\t<answer>uP||dOWN</answer>", ([0, 1], 2, True)),
        (b"</THINK><answer>Up</answer>", ([], 0, False)),
        (b"</think><answer></answer>", ([], 0, True)),
        (b"</think><answer> || | || </answer>", ([-1], 1, True)),
        (b"</think><answer>Up|||Down</answer>", ([0, -1], 2, True)),
        (b"</think><answer>Up||||Down</answer>", ([0, 1], 2, True)),
        (b"</think><answer>Up Down</answer>", ([-1], 1, True)),
        (b"</think><answer>Jump||Up||Up</answer>", ([-1, 0], 3, True)),
        (b"</think><answer>U<think>p</answer>", ([0], 1, True)),
        (b"</think><answer>Up\0</answer>", ([-1], 1, True)),
        (b"</think><answer>Up", ([], 0, False)),
        (b"<think></think></think><answer>Left</answer>", ([2], 1, True)),
        # Built by the removal of `<think>`, and itself removed by a later pass.
        (b"</think><answer>Up</thi<think>nk></answer>", ([0], 1, True)),
        # Built by the removal of a later literal: its own pass is over.
        (b"</think><answer>Up<thi</think>nk></answer>", ([-1], 1, True)),
        (b"</think><answer>Up|<answer>|Down</answer>", ([0, 1], 2, True)),
    ],
)
def test_written_cases(parser, reply, expected):
    """Cases by hand, so that parser and oracle cannot be wrong together."""
    assert parse_reply(reply, NAMES, MAX_ACTIONS) == expected
    assert parse_bytes(parser, reply) == expected


def test_hostile_batches_equal_the_oracle(parser):
    """Three batches of 2,048 replies: every field of every row."""
    draw = random.Random(1)
    for _ in range(3):
        rows = [hostile_reply(draw) for _ in range(NUM_ROWS)]
        num_formed = assert_agrees(parser, VOCABULARY, NAMES, rows, MAX_TOKENS)
        # The generator must reach both sides of every rule.
        assert NUM_ROWS // 4 < num_formed < NUM_ROWS


def test_the_limit_in_the_middle_of_a_tag(parser):
    """One reply cut after each of its tokens: the form is there only when whole."""
    reply = tokenize(b"ab</think> <answer>Up</answer>", random.Random(3))
    rows = [reply[:size] for size in range(len(reply) + 1)]
    rows += [[]] * (NUM_ROWS - len(rows))
    assert assert_agrees(parser, VOCABULARY, NAMES, rows, MAX_TOKENS) == 1


def test_special_and_unknown_tokens_have_no_bytes(parser):
    """Special ids and ids beyond the tokenizer's (a padded head) split nothing."""
    beyond = len(VOCABULARY.token_bytes) + 7
    row = []
    for token in tokenize(b"</think><answer>Up</answer>", random.Random(4)):
        row += [token, SPECIAL, beyond]
    assert len(row) <= MAX_TOKENS
    rows = [row] * NUM_ROWS
    assert assert_agrees(parser, VOCABULARY, NAMES, rows, MAX_TOKENS) == NUM_ROWS


def test_no_retrace_for_other_replies_or_tables(parser):
    """Replies and tables are traced: new values do not compile anew."""

    tokens, lengths = pad([[1], [2, 3]] * (NUM_ROWS // 2), MAX_TOKENS)
    parse_rows(parser, tokens, lengths)
    traced = len(TRACED)
    parse_rows(parser, tokens + 1, lengths + 1)
    parse_rows(jax.tree.map(lambda table: table + 0, parser), tokens, lengths)
    assert len(TRACED) == traced
    jax.eval_shape(parse_rows, parser, tokens[:2], lengths[:2])
    assert len(TRACED) == traced + 1


def long_vocabulary() -> Vocabulary:
    """Tokens as long as the longest of real vocabularies, harmless and harmful ones."""
    harmless = [
        *(b" " * 81, b"\n" * 60, b"-" * 128, b" " * 50 + b"if", b"); " + b"\t" * 40),
        *(b"=" * 64 + b"\n" * 40, "ไ".encode() * 20, b"x" * 12 + b" " * 90 + b"y" * 9),
        *(b"|" + b"-" * 70 + b"|", b"</think>" + b" " * 77, b"k>" + b"a" * 50 + b"</t"),
    ]
    harmful = [
        b"U" + b"<think>" * 6 + b"p",
        b"|" * 37,
        b"<answer>" * 5,
        b"||Up" * 12,
    ]
    return Vocabulary([*VOCABULARY.token_bytes, *harmless, *harmful])


def test_long_tokens_change_no_parse():
    """Tokens that are shortened, and some that must not be, anywhere in a reply."""
    vocabulary, names = long_vocabulary(), ("Up", "Down", "go  on", "-" * 12)
    assert max(map(len, vocabulary.token_bytes)) == 128
    parser = build_parser(
        vocabulary, names, max_actions_per_turn=3, max_reply_tokens=12
    )
    assert parser.token_bytes.shape[1] == 48
    first_long = len(VOCABULARY.token_bytes)
    draw, rows = random.Random(5), []
    for _ in range(NUM_ROWS):
        row = tokenize(b"</think><answer>", draw)[:4]
        row += tokenize(
            b"".join(draw.choices(FRAGMENTS[:6] + FRAGMENTS[30:], k=3)), draw
        )
        row += tokenize(b"</answer>", draw)[:3]
        for _ in range(draw.randrange(4)):
            token = draw.randrange(first_long, len(vocabulary.token_bytes))
            row.insert(draw.randrange(len(row) + 1), token)
        rows.append(row)
    assert assert_agrees(parser, vocabulary, names, rows, 12) > NUM_ROWS // 10


@pytest.mark.parametrize("longest_name", [2, 5, 12, 24])
def test_shortening_in_any_surroundings(longest_name):
    """The oracle reads a shortened token as it reads the whole one."""
    draw = random.Random(longest_name)
    bytes_of_runs = [b" ", b"-", b"\n", b"a ", b"|", b"<", b">", b"<think>"]
    num_shortened = 0
    for _ in range(4000):
        runs = draw.choices(bytes_of_runs, k=draw.randrange(1, 4))
        token = b"".join(run * draw.choice([1, 9, 30, 40]) for run in runs)
        short = shorten_token(token, longest_name=longest_name)
        num_shortened += short != token
        # Names made of what is left are the ones a careless cut would create.
        names = {short.strip()[:longest_name].strip(), short[-longest_name:].strip()}
        names = [name for name in names if name]
        before, after = (
            b"".join(draw.choices([*FRAGMENTS, b"</think><answer>"], k=3))
            for _ in range(2)
        )
        opening = draw.choice([b"", b"</think><answer>"])
        texts = [opening + before + x + after + b"</answer>" for x in (token, short)]
        whole, cut = (parse_reply(text, names, 5) for text in texts)
        assert whole == cut, (token, before, after)
    assert num_shortened > 400


def test_a_large_vocabulary_needs_a_small_table():
    """151,936 ids with long tokens among them fit in a few bytes each."""
    draw = random.Random(6)
    tokens = [
        bytes(draw.choices(range(97, 123), k=draw.randrange(1, 9))) for _ in range(997)
    ]
    tokens = (tokens * 153)[: 151_936 - len(VOCABULARY.token_bytes)]
    tokens[1000::5000] = [b"-" * 128, b" " * 83] * 15 + [b"=" * 70]
    vocabulary = Vocabulary([*VOCABULARY.token_bytes, *tokens])
    parser = build_parser(
        vocabulary, NAMES, max_actions_per_turn=5, max_reply_tokens=400
    )
    assert parser.token_bytes.shape[0] == 151_937
    assert parser.token_bytes.shape[1] <= LONG_TOKEN_BYTES
    rows = []
    for _ in range(16):
        row = [draw.randrange(259, 151_936) for _ in range(draw.randrange(380))]
        reply = b"</think>  <answer> Up ||left|| Jump</answer>"
        rows.append([*row, *tokenize(reply, draw)])
    assert assert_agrees(parser, vocabulary, NAMES, rows, 400) > 0


@pytest.mark.parametrize(
    ("names", "limits", "message"),
    [
        (("Up", "uP"), (1, 8), "twice"),
        (("Up", " Down"), (1, 8), "' Down'"),
        (("Up||Down",), (1, 8), "cannot be found"),
        (("Ho\u0308he",), (1, 8), "write them as one"),
        ((), (1, 8), "empty"),
        (("Up",), (0, 8), "max_actions_per_turn is 0"),
        (("Up",), (1, 0), "max_reply_tokens is 0"),
    ],
)
def test_bad_tables_are_refused(names, limits, message):
    with pytest.raises(ValueError, match=message):
        build_parser(
            VOCABULARY,
            names,
            max_actions_per_turn=limits[0],
            max_reply_tokens=limits[1],
        )


def test_a_reply_of_another_size_is_refused(parser):
    with pytest.raises(ValueError, match="24 tokens"):
        parser.parse(jnp.zeros(7, jnp.int32), jnp.array(7))
