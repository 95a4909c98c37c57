"""Every reply of a small world, one token after the other: a dictionary per prompt."""

import math


def replies(next_log_probs, alphabet, length, stop):
    """Probability of every reply.

    Args:
      next_log_probs: text (a tuple of tokens) -> log-weight of every token behind it.
      alphabet: tokens that a reply may hold.
      length: no reply is longer.
      stop: ends a reply; None: nothing does.
    """
    found = {}

    def go_on(text, probability):
        if len(text) == length or (text and text[-1] == stop):
            found[text] = probability
            return
        logs = next_log_probs(text)
        weights = [math.exp(float(logs[token])) for token in alphabet]
        for token, weight in zip(alphabet, weights, strict=True):
            go_on((*text, token), probability * weight / sum(weights))

    go_on((), 1.0)
    return found


def information(worlds):
    """I(X;Z) = sum p(x) p(z|x) log(p(z|x) / p(z)), and H(Z|X), of equal prompts."""
    prompts = len(worlds)
    mutual = conditional = 0.0
    for world in worlds:
        for text, probability in world.items():
            marginal = sum(other[text] for other in worlds) / prompts
            mutual += probability * math.log(probability / marginal) / prompts
            conditional -= probability * math.log(probability) / prompts
    return mutual, conditional
