"""The invented world: what is asked follows from what is told, and splits are apart."""

import itertools
import re

import pytest

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.bm25 import BM25Retriever
from ragen_jax.host_games.search.game import SearchQA
from ragen_jax.host_games.search.invented import (
    AGE,
    BRIDGE,
    COMPARISON,
    FACT,
    KINDS,
    build_questions,
    build_world,
)
from tests.host_games.episodes import printed

NAME = re.compile(r"\b[A-Z][a-z]{3}\b")
# Words of that form in questions and sentences.
NO_NAMES = {"What"}


def names_of(split):
    world = build_world(split)
    texts = [passage.text for passage in world.passages]
    texts += [question.text for question in build_questions(split, KINDS)]
    return set(NAME.findall(" ".join(texts))) - NO_NAMES


def read_facts(passages):
    """Facts by the text of the passages: (verb, subject) to value."""
    facts = {}
    for passage in passages:
        if match := re.fullmatch(r"The age of (\w+) is (\d+)\.", passage.text):
            facts["age", match[1]] = match[2]
        else:
            subject, verb, value = re.fullmatch(
                r"(\w+) (was born in|works for|is based in|lies in) (\w+)\.",
                passage.text,
            ).groups()
            facts[verb, subject] = value
    return facts


def answer_by_reading(text, facts):
    """The answer to a question, from its text and the facts alone."""
    name, *others = (word for word in NAME.findall(text) if word not in NO_NAMES)
    if others:
        first, second = int(facts["age", name]), int(facts["age", others[0]])
        return name if (first > second) == ("higher" in text) else others[0]
    chain = {
        "What is the age of {}?": ["age"],
        "In which town was {} born?": ["was born in"],
        "Which company is it that {} works for?": ["works for"],
        "In which town is {} based?": ["is based in"],
        "In which land lies {}?": ["lies in"],
        "In which town is the company based that {} works for?": [
            "works for",
            "is based in",
        ],
        "In which land lies the town where {} was born?": ["was born in", "lies in"],
        "In which land lies the town where {} is based?": ["is based in", "lies in"],
    }[text.replace(name, "{}")]
    for verb in chain:
        name = facts[verb, name]
    return name


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_follow_from_the_texts(split, kind):
    facts = read_facts(build_world(split).passages)
    questions = build_questions(split, (kind,))
    assert len(questions) > 400
    for question in questions:
        assert question.answer == answer_by_reading(question.text, facts)


def test_splits_share_nothing():
    training, validation = (names_of(split) for split in SPLITS)
    # 240 people, 120 companies, 80 towns, and lands that some town lies in.
    assert len(training) > 450
    assert len(validation) > 450
    assert not training & validation


@pytest.mark.parametrize("split", SPLITS)
def test_texts_are_short_and_different(split):
    world = build_world(split)
    assert 900 <= len(world.passages) <= 1_000
    assert len({passage.text for passage in world.passages}) == len(world.passages)
    assert max(len(passage.text) for passage in world.passages) <= 24
    texts = [question.text for question in build_questions(split, KINDS)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("split", SPLITS)
def test_every_hop_is_found_first(split):
    retriever = BM25Retriever(build_world(split).passages)
    num_hops = {FACT: 1, BRIDGE: 2, COMPARISON: 2}
    for kind in KINDS:
        for question in build_questions(split, (kind,)):
            assert len(question.hops) == num_hops[kind]
            for hop in question.hops:
                (found,) = retriever.search(hop.query, 1)
                assert found.id == hop.passage_id


@pytest.mark.parametrize("split", SPLITS)
def test_queries_can_be_copied(split):
    """From the question and the passages found so far."""
    texts = {passage.id: passage.text for passage in build_world(split).passages}
    for question in build_questions(split, KINDS):
        seen = question.text
        for hop in question.hops:
            assert set(hop.query.split()) <= set(re.findall(r"\w+", seen))
            seen += " " + texts[hop.passage_id]
        assert question.answer in seen


def test_worlds_of_a_split_share_names_and_hardly_a_fact():
    numbers = (0, 1, 2)
    texts = [
        {passage.text for passage in build_world("training", number).passages}
        for number in numbers
    ]
    for first, second in itertools.combinations(texts, 2):
        assert len(first & second) < 0.02 * len(first)
    assert build_world("training", 0) == build_world("training")
    known = names_of("validation")
    for number in numbers:
        passages = build_world("training", number).passages
        names = {name for passage in passages for name in NAME.findall(passage.text)}
        assert not names & known


def test_every_world_is_asked_about_and_can_be_won():
    game = SearchQA("training", num_worlds=3)
    assert game.num_tasks == 3 * SearchQA("training").num_tasks
    asked = set()
    for task in (0, 1, 2, 3, 4, 5, game.num_tasks - 1):
        asked.add(game.reset(0, task).text)
        *searches, answer = game.solution()
        for search in searches:
            assert not game.step(search).terminated
        assert game.step(answer).info["success"]
    assert len(asked) == 7
    # Scores of validation compare with those of one world.
    validation = [SearchQA("validation", num_worlds=n) for n in (None, 3)]
    assert len({g.num_tasks for g in validation}) == 1
    assert len({g.reset(7).text for g in validation}) == 1


def test_names_are_no_words_of_the_sentences():
    for split in SPLITS:
        texts = [passage.text for passage in build_world(split).passages]
        texts += [question.text for question in build_questions(split, KINDS)]
        names = names_of(split)
        lower_case = {name.lower() for name in names}
        spoken = {word for text in texts for word in re.findall(r"\w+", text)} - names
        assert not lower_case & {word.lower() for word in spoken}


def test_comparisons_cannot_be_guessed_by_position():
    for split in SPLITS:
        questions = build_questions(split, (COMPARISON,))
        firsts = [NAME.findall(q.text)[0] == q.answer for q in questions]
        # A fair coin misses this once in 10**5 splits of 450 questions.
        assert 0.4 < sum(firsts) / len(firsts) < 0.6
        pairs = {frozenset(NAME.findall(q.text)) for q in questions}
        assert len(pairs) == len(questions)


def test_no_answer_is_common_enough_to_guess():
    for split in SPLITS:
        questions = build_questions(split, (BRIDGE,))
        answers = [question.answer for question in questions]
        assert max(map(answers.count, set(answers))) / len(answers) < 0.1


DIGEST = """
from ragen_jax.host_games.common.splits import stable_hash
from ragen_jax.host_games.search.invented import KINDS, build_questions, build_world
for split in ("training", "validation"):
    texts = [passage.text for passage in build_world(split).passages]
    texts += [repr(question) for question in build_questions(split, KINDS)]
    print(stable_hash(*texts))
"""
# Of the world as published: another one would make results incomparable.
DIGESTS = [17383314213223688856, 13376259001286861632]


def test_the_world_is_the_same_in_every_process():
    assert [int(line) for line in printed(DIGEST).split()] == DIGESTS


def test_unknown_splits_are_refused():
    with pytest.raises(ValueError, match="use training or validation"):
        build_world("test")


def test_ages_differ_in_comparisons():
    for split in SPLITS:
        ages = build_world(split).facts[AGE]
        for question in build_questions(split, (COMPARISON,)):
            first, second = NAME.findall(question.text)
            assert ages[first] != ages[second]
