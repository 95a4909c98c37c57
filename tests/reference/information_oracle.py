"""RAGEN's collapse metrics, one thought and one prompt after the other.

Written from the formulas: a column per pair, equal prompts not merged, which weighs
each prompt by its share; for the uniform forms a column per different prompt, weighed
by 1 / N, as RAGEN's repository has it (reference behaviour, arXiv 2604.06268 section on
mutual information). Retrieval treats equal prompts as one.
"""

import math


def log_mean_exp(values):
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values) / len(values))


def log_sum_exp(values):
    return log_mean_exp(values) + math.log(len(values))


def mean(values):
    return sum(values) / len(values)


def spread(values):
    middle = mean(values)
    return math.sqrt(mean([(v - middle) ** 2 for v in values]))


def metrics(scores, lengths, prompt_of):
    """Of scores[thought][prompt], the prompts all different.

    Args:
      scores: log-probability of each thought under each different prompt.
      lengths: tokens of each thought.
      prompt_of: each thought's prompt.
    """
    thoughts = range(len(scores))
    # One column per pair: a prompt with several thoughts stands there several times.
    columns = [[scores[i][prompt_of[j]] for j in thoughts] for i in thoughts]
    own = [columns[i][i] for i in thoughts]
    sizes = lengths
    forms = {
        "repository": (
            [own[i] / sizes[i] for i in thoughts],
            [log_mean_exp([s / sizes[i] for s in columns[i]]) for i in thoughts],
        ),
        "sequence": (own, [log_mean_exp(columns[i]) for i in thoughts]),
        "paper": (
            [own[i] / sizes[i] for i in thoughts],
            [log_mean_exp(columns[i]) / sizes[i] for i in thoughts],
        ),
    }
    # One column per different prompt, each with the weight 1 / N.
    num_prompts = len(set(prompt_of))
    for form, whole in (("uniform", False), ("sequence_uniform", True)):
        divisors = [1 if whole else size for size in sizes]
        forms[form] = (
            [own[i] / divisors[i] for i in thoughts],
            [
                log_sum_exp([scores[i][j] / divisors[i] for j in range(num_prompts)])
                - math.log(num_prompts)
                for i in thoughts
            ],
        )
    found = {}
    for form, (matched, marginal) in forms.items():
        gains = [matched[i] - marginal[i] for i in thoughts]
        deviation = spread(marginal)
        found[form] = {
            "information": mean(gains),
            "conditional_entropy": -mean(matched),
            "entropy": -mean(marginal),
            "std": deviation,
            "zscore": mean([g / (deviation + 1e-3) for g in gains]),
        }
    different = sorted(set(prompt_of))
    for k in (1, 2, 4, 8):
        hits = []
        for i in thoughts:
            ranked = sorted(different, key=lambda j: -scores[i][j])
            hits.append(prompt_of[i] in ranked[:k])
        found[f"accuracy@{k}"] = mean(hits)
        found[f"chance@{k}"] = min(1.0, k / len(different))
    return found
