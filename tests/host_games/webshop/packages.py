"""Stand-ins for the packages of the faithful rules.

spaCy's model of English is not on package indexes.
"""

import types

from ragen_jax.host_games.webshop.matching import token_set_ratio


def fake_spacy(load=None):
    """Its module; without a loader, every word of a title is a noun."""

    def all_nouns(model):
        return lambda title: [
            types.SimpleNamespace(text=word, pos_="NOUN") for word in title.split()
        ]

    return types.SimpleNamespace(load=load or all_nouns)


def fake_rapidfuzz():
    """Its module, with the ratio that is computed here."""

    def ratio(first, second, processor):
        return token_set_ratio(processor(first), processor(second))

    return types.SimpleNamespace(fuzz=types.SimpleNamespace(token_set_ratio=ratio))
