"""Letters composed by a tokenizer, compared with letters as they were written."""

import unicodedata

import pytest

from ragen_jax.host_games.adapters.common import by_name, read_name
from ragen_jax.host_games.alfworld.story import plain
from ragen_jax.host_games.common.bm25 import words
from ragen_jax.host_games.common.files import one_line
from ragen_jax.host_games.mathqa.judge import strings_agree
from ragen_jax.host_games.search.scores import exact_match
from ragen_jax.host_games.webshop.pages import read_reply, write_click

WORDS = "Café Ångström naïve 한국"
COMPOSED, DECOMPOSED = (unicodedata.normalize(form, WORDS) for form in ("NFC", "NFD"))


@pytest.mark.parametrize("shown", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("reply", [COMPOSED, DECOMPOSED])
def test_a_copy_is_equal_however_its_letters_are_written(shown, reply):
    assert COMPOSED != DECOMPOSED
    assert exact_match(reply, shown)
    assert strings_agree(shown, reply)
    assert read_name(reply, by_name({7: shown, 8: "other"})) == 7
    assert plain(reply) == plain(shown)
    assert words(reply) == words(shown)
    # Names in a shop are read from its files by `one_line`.
    assert read_reply(write_click(reply)) == ("click", one_line(shown).lower())
