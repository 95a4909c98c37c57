"""Estimates of information: the oracle, what must hold of them, and edges."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.diagnostics.mutual_information import FORMS, averaged, estimates
from tests.pace import examples
from tests.reference import information_oracle

ORACLE_FORMS = {
    "": "repository",
    "_seq": "sequence",
    "_paper": "paper",
    "_uniform": "uniform",
    "_seq_uniform": "sequence_uniform",
}


def scored(seed, num_pairs=12, num_prompts=5, closeness=1.0):
    """Random scores; every prompt has a thought."""
    random = np.random.default_rng(seed)
    more = random.integers(0, num_prompts, num_pairs - num_prompts)
    prompt_of = random.permutation(np.concatenate([np.arange(num_prompts), more]))
    lengths = random.integers(1, 9, num_pairs)
    scores = -lengths[:, None] * random.uniform(0.1, 3.0, (num_pairs, num_prompts))
    scores = scores.astype(np.float32)
    scores[np.arange(num_pairs), prompt_of] *= closeness
    return scores, lengths, prompt_of


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("closeness", [0.2, 1.0])
def test_as_the_oracle_has_it(seed, closeness):
    case = scored(seed, closeness=closeness)
    result, wanted = (
        estimates(*case),
        information_oracle.metrics(*(x.tolist() for x in case)),
    )
    for form, name in ORACLE_FORMS.items():
        information, entropy = FORMS[form]
        want = wanted[name]
        assert result[information] == pytest.approx(want["information"], abs=1e-9)
        assert result[entropy] == pytest.approx(want["entropy"])
        assert result[f"marginal_std{form}"] == pytest.approx(want["std"])
        assert result[f"mi_zscore{form}"] == pytest.approx(want["zscore"], abs=1e-7)
    for form, name in (("", "repository"), ("_seq", "sequence")):
        want = wanted[name]["conditional_entropy"]
        assert result[f"conditional_entropy{form}_est"] == pytest.approx(want)
    assert result["matched_log_prob_mean"] == -result["conditional_entropy_est"]
    assert result["marginal_log_prob_mean"] == -result["reasoning_entropy_est"]
    for k in (1, 2, 4, 8):
        suffix = "" if k == 1 else f"@{k}"
        accuracy, chance = wanted[f"accuracy@{k}"], wanted[f"chance@{k}"]
        assert result[f"retrieval_accuracy{suffix}"] == pytest.approx(accuracy)
        assert result[f"retrieval_chance_level{suffix}"] == pytest.approx(chance)
        above = result[f"retrieval_above_chance{suffix}"]
        assert above == pytest.approx(accuracy - chance)


@settings(deadline=None, max_examples=examples(50))
@given(seed=st.integers(0, 2**32 - 1), closeness=st.floats(0.0, 3.0))
def test_entropies_add_up_and_information_is_bounded(seed, closeness):
    scores, lengths, prompt_of = scored(seed, closeness=closeness)
    result = estimates(scores, lengths, prompt_of)
    for form, (information, entropy) in FORMS.items():
        is_whole = form.startswith("_seq")
        conditional = f"conditional_entropy{'_seq' * is_whole}_est"
        assert result[entropy] == pytest.approx(
            result[information] + result[conditional]
        )
    assert result["mi_seq_estimate"] <= result["mi_upper_bound"] + 1e-9
    assert result["mi_estimate"] <= result["mi_upper_bound"] + 1e-9
    for weights in ("_uniform", "_seq_uniform"):
        assert result[FORMS[weights][0]] <= math.log(scores.shape[1]) + 1e-9
    assert result["mi_upper_bound"] <= math.log(scores.shape[1]) + 1e-9


def test_the_two_forms_of_the_worked_example():
    """8 prompts, 100 tokens, every wrong prompt 0.5 nats per token less likely."""
    scores = np.full((8, 8), -150.0, np.float32)
    np.fill_diagonal(scores, -100.0)
    result = estimates(scores, np.full(8, 100), np.arange(8))
    assert result["mi_estimate"] == pytest.approx(0.42, abs=5e-3)
    assert result["mi_estimate_paper"] == pytest.approx(0.021, abs=5e-4)
    assert result["mi_seq_estimate"] == pytest.approx(math.log(8))
    assert result["mi_upper_bound"] == pytest.approx(math.log(8))
    assert result["retrieval_accuracy"] == 1.0


def test_a_template_says_nothing():
    """One text, equally likely everywhere: no information, retrieval by chance."""
    result = estimates(
        np.full((6, 3), -7.0), np.full(6, 7), np.array([0, 0, 1, 1, 2, 2])
    )
    for information, _ in FORMS.values():
        assert result[information] == pytest.approx(0.0, abs=1e-12)
    assert result["retrieval_accuracy"] == pytest.approx(1 / 3)
    assert result["retrieval_accuracy@2"] == pytest.approx(2 / 3)
    assert result["retrieval_above_chance@4"] == 0.0


def test_equal_prompts_count_as_often_as_they_occur():
    """Merged columns give what a column per pair gives, if weighed by their shares."""
    scores, lengths, _ = scored(3, num_pairs=4, num_prompts=4)
    scores[:, 1] = scores[:, 0]
    merged = estimates(scores[:, [0, 2, 3]], lengths, np.array([0, 0, 1, 2]))
    apart = estimates(scores, lengths, np.arange(4))
    for form, names in FORMS.items():
        for name in names:
            is_equal = merged[name] == pytest.approx(apart[name])
            assert is_equal != form.endswith("uniform")
    assert merged["retrieval_chance_level"] == pytest.approx(1 / 3)


def test_uniform_weights_differ_where_prompts_have_unequal_numbers_of_thoughts():
    scores, lengths, prompt_of = scored(5, num_pairs=9, num_prompts=3)
    equal = estimates(scores, lengths, np.arange(9) % 3)
    assert equal["mi_estimate_uniform"] == pytest.approx(equal["mi_estimate"])
    assert len({*np.bincount(prompt_of)}) > 1
    unequal = estimates(scores, lengths, prompt_of)
    assert unequal["mi_estimate_uniform"] != pytest.approx(unequal["mi_estimate"])


def test_nothing_to_compare():
    nothing = estimates(np.zeros((0, 0)), np.zeros(0, int), np.zeros(0, int))
    assert nothing == {"num_samples": 0.0, "num_prompts": 0.0}
    alone = estimates(np.full((3, 1), -2.0), np.full(3, 2), np.zeros(3, int))
    assert alone["conditional_entropy_est"] == 1.0
    assert alone["conditional_entropy_seq_est"] == 2.0
    assert "mi_estimate" not in alone
    assert averaged(alone, {}) == {}


def test_the_average_starts_with_the_first_value():
    now = {f"marginal_std{form}": 2.0 for form in FORMS}
    now |= {information: 0.5 for information, _ in FORMS.values()}
    first = averaged(now, {})
    later = averaged(now, dict.fromkeys(first, 1.0))
    broken = averaged(now, dict.fromkeys(first, math.nan))
    for form in FORMS:
        assert first[f"marginal_std_ema{form}"] == 2.0
        assert later[f"marginal_std_ema{form}"] == pytest.approx(1.1)
        zscore = later[f"mi_zscore_ema{form}"]
        assert zscore == pytest.approx(0.5 / (1.1 + 1e-3))
    assert broken == first
