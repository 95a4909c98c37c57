"""Word problems with an integer answer, made of sentences written here.

In: a random source and how hard. Out: a `Problem` with its answer and a `key`, which
names its numbers and sentences without the people and things in them: by it problems
are dealt to splits, so that no story of one split is retold in the other.
"""

import dataclasses
import random

NAMES = ("Ada", "Bela", "Chen", "Dina", "Emil", "Femi", "Gita", "Hugo", "Ines", "Jomo")
THINGS = ("apples", "shells", "stamps", "marbles", "pens", "cards", "nuts", "beads")

# Each adds or takes some things: {n} is the person, {t} the things, {x} the number.
GAINS = (
    "{n} finds {x} more.",
    "A friend brings {n} another {x}.",
    "{n} buys {x} new ones.",
)
LOSSES = (
    "{n} gives {x} away.",
    "Then {x} get lost.",
    "{n} sells {x} of them.",
)
# The first step: a product; or none, and the text states a number.
PRODUCTS = (
    "{n} has {k} boxes with {x} {t} in each.",
    "{n} collects {x} {t} a day for {k} days.",
    "There are {k} rows of {x} {t} on the table of {n}.",
)
STATED = ("{n} has {x} {t}.", "In the bag of {n} there are {x} {t}.")
# The last step, or none.
SHARES = (
    "All of them are shared equally among {k} friends. How many does each get?",
    "{n} packs all of them into {k} equal bags. How many are in a bag?",
)
PRICES = ("Each costs {k} cents. How many cents are all of them worth together?",)
COUNTS = ("How many {t} does {n} have now?", "How many {t} are there in the end?")

MAX_STEPS = 3
# Factors, divisors and prices of a story.
FACTORS = range(2, 10)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A word problem.

    Attributes:
      question: the story and its question.
      answer: not negative.
      key: the same for stories that differ in names and things alone.
    """

    question: str
    answer: int
    key: str


def draw_problem(
    source: random.Random, *, max_number: int, num_steps: int
) -> Problem | None:
    """Draw a problem.

    Args:
      source: random numbers, taken as needed.
      max_number: the largest number told and the largest amount on the way, prices'
        products excepted.
      num_steps: operations on the way to the answer, 1 to `MAX_STEPS`.

    Returns:
      None where the numbers drawn do not fit, for instance an amount that cannot be
      shared: draw again.
    """
    fillings = {"n": source.choice(NAMES), "t": source.choice(THINGS)}
    sentences, key = [], []

    def tell(kind: str, templates: tuple[str, ...], **numbers: int) -> None:
        index = source.randrange(len(templates))
        sentences.append(templates[index].format(**fillings, **numbers))
        key.append(f"{kind}{index}{sorted(numbers.items())}")

    left = num_steps
    amount = source.randint(2, max_number)
    if left > 0 and source.random() < 0.4:
        factor, each = source.choice(FACTORS), amount
        amount = factor * each
        tell("product", PRODUCTS, k=factor, x=each)
        left -= 1
    else:
        # The word is part of what decides the split.
        tell("told", STATED, x=amount)
    ending = source.choice(("share", "price", "count")) if left > 0 else "count"
    for _ in range(left - (ending != "count")):
        change = source.randint(2, max_number)
        if source.random() < 0.5:
            amount += change
            tell("gain", GAINS, x=change)
        else:
            amount -= change
            tell("loss", LOSSES, x=change)
        if amount < 0:
            return None
    if not 1 <= amount <= max_number:
        return None
    factor = source.choice(FACTORS)
    if ending == "share":
        if amount % factor:
            return None
        amount //= factor
        tell("share", SHARES, k=factor)
    elif ending == "price":
        amount *= factor
        tell("price", PRICES, k=factor)
    else:
        tell("count", COUNTS)
    return Problem(" ".join(sentences), amount, " ".join(key))
