"""How an answer is judged: exact match, else the F1 score of its words.

In: an answer and the truth. Out: scores from 0 to 1.

Source: the evaluation of SQuAD (arXiv 1606.05250) and HotpotQA (arXiv 1809.09600); the
threshold is RAGEN's. Unlike there, letters are composed first (NFC), and a truth of
which normalizing leaves nothing is not equal to every answer of that kind; in HotpotQA
only the latter changes scores, of the answers that are articles or signs alone.
"""

import collections
import re
import string

from ragen_jax.host_games.common.texts import compose

ARTICLES = re.compile(r"\b(a|an|the)\b")
# ASCII only, as in the original: typographic quotes and dashes stay.
PUNCTUATION = str.maketrans("", "", string.punctuation)
BRACKETS = str.maketrans("", "", "[]")
# Answers that are right or wrong as a whole: `no` and `not at all, no` share a word.
WHOLE_ANSWERS = frozenset({"yes", "no", "noanswer"})
# F1 scores below this one pay nothing.
F1_THRESHOLD = 0.3


def normalize(answer: str) -> str:
    """The answer in lower case without punctuation, articles and spare blanks.

    In this order, so that `A.` is an article and goes, and `U.S.` becomes `us`.
    """
    bare = compose(answer).lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, truth: str) -> bool:
    """Whether both are the same text once normalized.

    Of "The The" and "+" that leaves nothing: such a truth is compared as it is, but for
    case, blanks and brackets, which a reply cannot have.
    """
    if normalize(truth):
        return normalize(answer) == normalize(truth)
    answer, truth = (
        compose(text).lower().translate(BRACKETS).split() or ["."]
        for text in (answer, truth)
    )
    return answer == truth


def f1_score(answer: str, truth: str) -> float:
    """Harmonic mean of precision and recall of the words of both, with repetitions.

    0 where they share no word, where either has no words, and where either is one of
    `WHOLE_ANSWERS` and the other is not the same.
    """
    answer, truth = normalize(answer), normalize(truth)
    if answer != truth and not WHOLE_ANSWERS.isdisjoint((answer, truth)):
        return 0.0
    answer_words, truth_words = answer.split(), truth.split()
    shared = collections.Counter(answer_words) & collections.Counter(truth_words)
    # 2PR / (P + R), with P = shared / answer and R = shared / truth.
    words = len(answer_words) + len(truth_words)
    return 2 * shared.total() / words if words else 0.0


def pay(answer: str, truth: str) -> float:
    """1 for an exact match, else the F1 score if it reaches `F1_THRESHOLD`, else 0."""
    if exact_match(answer, truth):
        return 1.0
    f1 = f1_score(answer, truth)
    return f1 if f1 >= F1_THRESHOLD else 0.0
