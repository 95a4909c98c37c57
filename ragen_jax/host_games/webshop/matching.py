"""When two texts of a shop mean the same: similarity, nouns, colours.

In: titles, attributes and values of options. Out: numbers and sets of words. Does not
know goals and rewards.

Sources: WebShop compares attributes and options by the token set ratio of the package
thefuzz, and titles by the nouns that spaCy finds (web_agent_site/engine/goal.py); both
numbers enter the reward. `MATCHERS` has that as "faithful", and as "light" the same
without packages: the ratio is computed here (it is defined by rapidfuzz), and nouns are
the words of a title that a list and some endings do not rule out.

"light" differs from WebShop in that letters outside ASCII count, that colours have to
be whole words (for WebShop `shredded` is red), that a noun which a title repeats counts
once, in which words are colours, and in how it counts options (`Rules.is_strict`). Both
have rapidfuzz's ratio also where thefuzz 0.19 without Levenshtein takes difflib's.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection

from ragen_jax import install_command

SIMILAR_ABOVE = 85
SPACY_MODEL = "en_core_web_sm"
NOT_WORD = re.compile(r"\W+")
LETTERS = re.compile(r"[^\W\d_]+")
LATIN_1 = re.compile("[\x80-\xff]")

_COLORS = """
    amber apricot aqua azure beige black blue blush bronze brown burgundy camel
    champagne charcoal copper coral cream crimson cyan denim gold graphite gray green
    grey indigo ivory khaki lavender lilac lime magenta maroon mauve mint mustard navy
    nude olive orange peach pewter pink plum purple red rose ruby rust salmon sand
    sapphire silver tan taupe teal turquoise violet white wine yellow
"""
# Words of titles that are not what is sold: function words, sizes and units, and
# adjectives that shops like.
_OTHER_WORDS = """
    a an and any are as at be best by for from in into is it its no not of off on or our
    out per set that the their these this to up us use used we with without you your

    small medium large xs s m l xl xxl size sized count pack pcs
    inch inches cm mm ft oz lb lbs kg g ml

    big bright casual cheap classic clean compact cool cute dark deep dry easy extra
    fashion fast fine flat fresh full general great handmade hard healthy heavy high hot
    ideal light little long low lower mini modern multi natural new nice old open
    organic original perfect portable premium pure quick real round royal short simple
    slim smart smooth soft solid square strong super thick thin upper vintage warm wet
    wide wild
"""
_NOUNS_ALL_THE_SAME = "belly bible cable doily jelly lily table"
COLORS = frozenset(_COLORS.split())
# The words that WebShop looks for, in its order (web_agent_site/engine/normalize.py).
_PUBLISHED_COLORS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux
    bronze brown burgundy camel camo caramel champagne charcoal cheetah chestnut
    chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
    eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey
    heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta
    maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy
    nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal
    tiger turquoise violet walnut wheat white wine yellow
"""
PUBLISHED_COLORS = tuple(_PUBLISHED_COLORS.split())
OTHER_WORDS = frozenset(_OTHER_WORDS.split())
OTHER_ENDINGS = ("able", "ible", "ful", "less", "ous", "proof", "ical", "ly")
NOUNS_ALL_THE_SAME = frozenset(_NOUNS_ALL_THE_SAME.split())


@dataclasses.dataclass(frozen=True)
class Rules:
    """How texts are compared.

    Attributes:
      ratio: similarity of two texts from 0 to 100, ignoring the order of words.
      nouns: what a title says is sold, in lower case.
      color_of: the first colour in an option's value; without one, the value.
      is_strict: an option chosen meets one option wanted at most, and sizes have to be
        equal. If not, it meets all that it is similar to, sizes too.
    """

    ratio: Callable[[str, str], float]
    nouns: Callable[[str], Collection[str]]
    color_of: Callable[[str], str]
    is_strict: bool

    def similar(self, first: str, second: str) -> bool:
        """The ratio, rounded as in thefuzz, is above `SIMILAR_ABOVE`."""
        return round(self.ratio(first, second)) > SIMILAR_ABOVE


def plain(text: str) -> str:
    """Lower case, with a blank for everything but letters and digits."""
    return NOT_WORD.sub(" ", text.replace("_", " ")).lower().strip()


def token_set_ratio(first: str, second: str) -> float:
    """Similarity of two sets of words from 0 to 100, as defined by rapidfuzz.

    100 if all words of one are in the other, else the best of three comparisons: what
    is in one only with what is in the other only, and with each of them what is shared.
    0 if there are no words.
    """
    words, others = set(plain(first).split()), set(plain(second).split())
    if not words or not others:
        return 0.0
    shared = len(" ".join(words & others))
    left, right = (" ".join(sorted(only)) for only in (words - others, others - words))
    if shared and not (left and right):
        return 100.0
    blank = bool(shared)
    all_left, all_right = (shared + blank + len(text) for text in (left, right))
    ratios = [_ratio(edit_distance(left, right), all_left + all_right)]
    if shared:
        # What is shared, compared with itself and the rest, lacks only the rest.
        ratios += [
            _ratio(all_ - shared, all_ + shared) for all_ in (all_left, all_right)
        ]
    return max(ratios)


def _ratio(distance: int, chars: int) -> float:
    return 100 - 100 * distance / chars


def edit_distance(first: str, second: str) -> int:
    """Characters to insert and delete so that one text becomes the other.

    Source: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004); a zero bit
    of `row` is a character of `first` that is matched.
    """
    places: dict[str, int] = {}
    for i, character in enumerate(first):
        places[character] = places.get(character, 0) | 1 << i
    full = (1 << len(first)) - 1
    row = full
    for character in second:
        matches = row & places.get(character, 0)
        row = ((row + matches) | (row - matches)) & full
    common = len(first) - row.bit_count()
    return len(first) + len(second) - 2 * common


@functools.lru_cache(maxsize=4096)
def likely_nouns(title: str) -> frozenset[str]:
    """Words of a title that may be nouns, each in the singular."""
    words = LETTERS.findall(title.lower())
    return frozenset(
        _singular(word)
        for word in words
        if len(word) > 1
        and word not in OTHER_WORDS | COLORS
        and (word in NOUNS_ALL_THE_SAME or not word.endswith(OTHER_ENDINGS))
    )


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def color_of(value: str) -> str:
    """The first colour of an option's value; without one, the value in lower case."""
    words = LETTERS.findall(value.lower())
    return next((word for word in words if word in COLORS), value.lower())


def published_color_of(value: str) -> str:
    """The first colour of the list that a value contains, also inside a word."""
    return next((color for color in PUBLISHED_COLORS if color in value), value)


def published_plain(text: str) -> str:
    """`plain` of a text without what is in Latin-1 and not in ASCII, as in thefuzz."""
    return plain(LATIN_1.sub("", text))


def light_rules() -> Rules:
    """Rules that need no packages."""
    return Rules(token_set_ratio, likely_nouns, color_of, is_strict=True)


@functools.cache
def faithful_rules() -> Rules:
    """WebShop's rules, by rapidfuzz and spaCy; once per process.

    Raises:
      ImportError: a package or spaCy's model of English is not installed.
    """
    try:
        import rapidfuzz
        import spacy
    except ImportError as error:
        raise ImportError(
            f"rules='faithful' needs the package {error.name}, which is not installed; "
            f"run: {install_command('webshop')}, or use rules='light'"
        ) from error
    try:
        read = spacy.load(SPACY_MODEL)
    except OSError as error:
        raise ImportError(
            f"rules='faithful' needs spaCy's model {SPACY_MODEL}, which is not "
            f"installed; run: python -m spacy download {SPACY_MODEL}, or use "
            "rules='light'"
        ) from error

    def ratio(first: str, second: str) -> float:
        return rapidfuzz.fuzz.token_set_ratio(first, second, processor=published_plain)

    # Reading a title takes milliseconds, and there are as many titles as products.
    @functools.lru_cache(maxsize=4096)
    def nouns(title: str) -> tuple[str, ...]:
        words = read(title)
        return tuple(w.text.lower() for w in words if w.pos_ in ("NOUN", "PROPN"))

    return Rules(ratio, nouns, published_color_of, is_strict=False)


MATCHERS = {"light": light_rules, "faithful": faithful_rules}
