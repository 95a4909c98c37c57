"""Games that read answers: many texts at a time, and replies against an oracle."""

import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BYTES, BATCH = 64, 64


def read(reader, texts, *others) -> list[int]:
    """What a compiled reader of rows makes of texts.

    Args:
      reader: of padded texts, their sizes, and `others`.
    """
    table = np.zeros((len(texts), BYTES), np.uint8)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = list(text)
    sizes = jnp.array([len(text) for text in texts], jnp.int32)
    return np.asarray(reader(jnp.asarray(table), sizes, *others)).tolist()


def listed(texts: str) -> list[bytes]:
    """The texts of a table, with bars or line ends between them."""
    rows = texts.strip().replace("\n", "|").split("|")
    return [x.replace("\\x00", "\0").replace("\\n", "\n").encode() for x in rows]


def rendered(env, fields) -> list[str]:
    """Actions as written, from the `action_fields` of many."""
    rows = zip(*fields.values(), strict=True)
    return [
        env.action_template.render(dict(zip(fields, row, strict=True))) for row in rows
    ]


def check_replies(replies, read_all, expected, *, num_read: int) -> None:
    """Batches of drawn replies are read as by an oracle.

    Args:
      replies: strategy of one reply.
      read_all: actions of many replies.
      expected: action of one; -1: it is not an action.
      num_read: replies of all that must be actions, or the strategy is too wild.
    """
    counts = [0, 0]

    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(replies, min_size=BATCH, max_size=BATCH))
    def check(batch):
        actions = [expected(reply) for reply in batch]
        assert read_all(batch) == actions
        counts[0] += len(batch)
        counts[1] += sum(action >= 0 for action in actions)

    check()
    assert counts[0] >= 1_500
    assert counts[1] >= num_read
