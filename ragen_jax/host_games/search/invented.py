"""Invented worlds of people, companies, towns and lands, and questions about them.

In: a split, a number and what to ask. Out: passages of one fact each, and questions
with their answers and the searches that find them.

Every name is two syllables, every fact one sentence of a fixed form, and a question has
in it the words of the sentences it needs, so that a small model can learn to search by
copying. The two splits share no name, hence no passage and no question. The worlds of a
split draw from the same names and share facts only by chance: a model that has read one
knows nothing about another.
"""

import dataclasses
import functools
import itertools

from ragen_jax.host_games.common.bm25 import Passage
from ragen_jax.host_games.common.splits import (
    check_split,
    split_of_hash,
    stable_hash,
)
from ragen_jax.host_games.search.questions import Hop, Question

CONSONANTS = "bdfklmnprstv"
VOWELS = "aeiou"
SYLLABLES = tuple(c + v for c, v in itertools.product(CONSONANTS, VOWELS))
# Names that the syllables make and that read as something else.
UNWANTED_NAMES = frozenset({"Kike", "Pedo", "Puta", "Papa", "Mama", "Pute", "Rape"})
# One name in four belongs to validation, as with levels of the games on the device.
VALIDATION_ONE_IN = 4

NUM_PEOPLE, NUM_COMPANIES, NUM_TOWNS, NUM_LANDS = 240, 120, 80, 20
# Ages run from the first to below the second.
AGES = (20, 90)
# Comparisons per person, as the first of the two that are named.
COMPARISONS = 2

# What can be asked: facts of one passage, chains of two, comparisons of two.
FACT, BRIDGE, COMPARISON = KINDS = ("fact", "bridge", "comparison")


@dataclasses.dataclass(frozen=True)
class Relation:
    """A kind of fact, which each entity of one kind has.

    Attributes:
      sentence: with `{subject}` and `{value}`.
      query: with `{subject}`; of all passages only the fact's has all of its words.
      question: asks for the value of one `{subject}`.
    """

    sentence: str
    query: str
    question: str


AGE = Relation(
    sentence="The age of {subject} is {value}.",
    query="{subject} age",
    question="What is the age of {subject}?",
)
BORN = Relation(
    sentence="{subject} was born in {value}.",
    query="{subject} born",
    question="In which town was {subject} born?",
)
WORKS = Relation(
    sentence="{subject} works for {value}.",
    query="{subject} works",
    question="Which company is it that {subject} works for?",
)
BASED = Relation(
    sentence="{subject} is based in {value}.",
    query="{subject} based",
    question="In which town is {subject} based?",
)
LIES = Relation(
    sentence="{subject} lies in {value}.",
    query="{subject} lies",
    question="In which land lies {subject}?",
)

# Two relations in a row, and what asks for the value at the end.
BRIDGES = (
    (WORKS, BASED, "In which town is the company based that {subject} works for?"),
    (BORN, LIES, "In which land lies the town where {subject} was born?"),
    (BASED, LIES, "In which land lies the town where {subject} is based?"),
)
# Whether the higher age answers, and what asks for it.
CONTESTS = (
    (True, "Who has the higher age, {first} or {second}?"),
    (False, "Who has the lower age, {first} or {second}?"),
)


@dataclasses.dataclass(frozen=True)
class World:
    """All facts.

    Attributes:
      facts: relation to its facts, from subject to value.
      passages: one per fact.
    """

    facts: dict[Relation, dict[str, str]]
    passages: tuple[Passage, ...]


def _names(split: str, number: int) -> list[str]:
    pairs = itertools.product(SYLLABLES, SYLLABLES)
    names = {(first + second).capitalize() for first, second in pairs} - UNWANTED_NAMES
    mine = [
        name
        for name in names
        if split_of_hash(stable_hash("split", name), VALIDATION_ONE_IN) == split
    ]
    of_world = _of_world(number)
    return sorted(mine, key=lambda name: stable_hash("order", name, *of_world))


def _of_world(number: int) -> tuple[int, ...]:
    """The part of a random key that names a world; empty for the first."""
    return (number,) if number else ()


def _passage_id(relation: Relation, subject: str) -> str:
    return relation.query.format(subject=subject)


@functools.lru_cache(maxsize=64)
def build_world(split: str, number: int = 0) -> World:
    """A world of a split, always the same one.

    Args:
      split: one of `SPLITS`.
      number: which of its worlds.
    """
    check_split(split)
    names, of_world = iter(_names(split, number)), _of_world(number)
    sizes = (NUM_PEOPLE, NUM_COMPANIES, NUM_TOWNS, NUM_LANDS)
    people, companies, towns, lands = (
        list(itertools.islice(names, size)) for size in sizes
    )
    ages = [str(age) for age in range(*AGES)]
    of_kinds = {
        AGE: (people, ages),
        BORN: (people, towns),
        WORKS: (people, companies),
        BASED: (companies, towns),
        LIES: (towns, lands),
    }
    facts = {
        relation: {
            subject: values[
                stable_hash(relation.query, subject, *of_world) % len(values)
            ]
            for subject in subjects
        }
        for relation, (subjects, values) in of_kinds.items()
    }
    passages = tuple(
        Passage(
            id=_passage_id(relation, subject),
            text=relation.sentence.format(subject=subject, value=value),
        )
        for relation, values in facts.items()
        for subject, value in values.items()
    )
    return World(facts, passages)


def _question(text: str, answer: str, *needed: tuple[Relation, str]) -> Question:
    """A question and the facts (relation and subject) that it needs, in order."""
    hops = tuple(
        Hop(relation.query.format(subject=subject), _passage_id(relation, subject))
        for relation, subject in needed
    )
    return Question(id=text, text=text, answer=answer, hops=hops)


def _fact_questions(world: World) -> list[Question]:
    return [
        _question(relation.question.format(subject=subject), value, (relation, subject))
        for relation, values in world.facts.items()
        for subject, value in values.items()
    ]


def _bridge_questions(world: World) -> list[Question]:
    questions = []
    for first, second, template in BRIDGES:
        for subject, middle in world.facts[first].items():
            answer = world.facts[second][middle]
            text = template.format(subject=subject)
            questions.append(
                _question(text, answer, (first, subject), (second, middle))
            )
    return questions


def _comparison_questions(world: World) -> list[Question]:
    ages = world.facts[AGE]
    people = list(ages)
    questions = []
    for i, first in enumerate(people):
        # The neighbours in a ring: each pair is asked about once.
        for offset in range(1, COMPARISONS + 1):
            second = people[(i + offset) % len(people)]
            if ages[first] == ages[second]:
                continue
            higher, template = CONTESTS[stable_hash("contest", first, second) % 2]
            chosen = max if higher else min
            answer = chosen(first, second, key=lambda name: int(ages[name]))
            text = template.format(first=first, second=second)
            questions.append(_question(text, answer, (AGE, first), (AGE, second)))
    return questions


ASKED = {
    FACT: _fact_questions,
    BRIDGE: _bridge_questions,
    COMPARISON: _comparison_questions,
}


@functools.lru_cache(maxsize=64)
def build_questions(
    split: str, kinds: tuple[str, ...], number: int = 0
) -> tuple[Question, ...]:
    """All questions of some kinds about a world, well mixed.

    Args:
      split: one of `SPLITS`.
      kinds: some of `KINDS`.
      number: which world of the split.
    """
    world = build_world(split, number)
    questions = [question for kind in kinds for question in ASKED[kind](world)]
    questions.sort(key=lambda question: stable_hash("question", question.id))
    return tuple(questions)
