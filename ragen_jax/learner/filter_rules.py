"""Rules of the configuration section `filter`: which groups are learned from."""

from collections.abc import Callable, Iterator

from ragen_jax.algo import filters
from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import DIRECTIONS, SCORES
from ragen_jax.tables.functions import Table, data_names, option_names
from ragen_jax.tables.rules import Leaves, Rules


def compares_rows(entry: Callable) -> bool:
    """An estimator or a score compares the rows of a group, so that one is too few."""
    return "group_size" in data_names(entry)


def single_row_entries(table: Table) -> str:
    """Names of the entries that a group of one row is enough for."""
    names = [name for name, entry in table.items() if not compares_rows(entry)]
    return ", ".join(sorted(names))


def keeps_every_group(leaves: Leaves) -> bool:
    """The filter's rule takes rows of every candidate group, whatever the scores."""
    rule = leaves["filter.rule"]
    if rule == "quantile_band":
        return (leaves["filter.quantile_low"], leaves["filter.quantile_high"]) == (0, 1)
    share = {
        "top_fraction": "filter.keep_fraction",
        "top_p": "filter.top_p",
        "top_p_softmax": "filter.top_p",
    }
    return (
        rule == "within_group"
        or (rule == "top_k" and leaves["filter.top_k"] == leaves["rollout.num_groups"])
        or (rule in share and leaves[share[rule]] == 1)
    )


def keeps_something(leaves: Leaves) -> bool:
    """The filter keeps at least a row of every batch, whatever the rewards."""
    if not leaves["filter.keep_zero"]:
        return False
    rule, num_groups = leaves["filter.rule"], leaves["rollout.num_groups"]
    if rule == "quantile_band":
        low, high = leaves["filter.quantile_low"], leaves["filter.quantile_high"]
        # The rule rounds by less than a hundredth of a group.
        return (high - low) * num_groups >= 1.01
    if rule == "min_p":
        # A spread is never below 0, so the best score always comes up to itself.
        return compares_rows(SCORES[leaves["filter.score"]])
    always = ("top_fraction", "top_k", "top_p_softmax")
    return rule in always or keeps_every_group(leaves)


def _options(leaves: Leaves) -> Iterator[str]:
    rule, scale = leaves["filter.rule"], leaves["filter.loss_scale"]
    of_rule = {f"filter.{name}" for name in option_names(filters.RULES[rule])}
    of_scale = {f"filter.{n}" for n in option_names(FILTER_LOSS_SCALES[scale])}
    of_rules = {
        f"filter.{name}"
        for entry in filters.RULES.values()
        for name in option_names(entry)
    }
    for key in sorted(of_rule):
        if leaves[key] is None:
            yield (
                f"filter.rule = {rule!r} needs {key}, which is None; set it, or choose "
                "another rule"
            )
    for key in sorted(of_rules & set(RULES.optional) - of_rule - of_scale):
        if leaves[key] is not None:
            yield (
                f"{key} = {leaves[key]} is no option of filter.rule = {rule!r}; set it "
                f"to None (--config.{key}=None), or choose the rule it belongs to"
            )
    for key in sorted(of_scale - of_rule):
        yield (
            f"filter.loss_scale = {scale!r} reads {key}, which filter.rule = {rule!r} "
            "does not use; choose 'linear' or 'sqrt', or filter.rule = 'top_p'"
        )
    low, high = leaves["filter.quantile_low"], leaves["filter.quantile_high"]
    if low is not None and high is not None and low >= high:
        yield (
            f"filter.quantile_low = {low} is not below filter.quantile_high = {high}; "
            "exchange them"
        )
    size = leaves["rollout.group_size"]
    if rule == "within_group" and leaves["filter.rows_per_group"] > size:
        yield (
            f"filter.rows_per_group = {leaves['filter.rows_per_group']} rows are more "
            f"than a group has (rollout.group_size = {size}); use at most {size}"
        )
    if rule == "top_k" and leaves["filter.top_k"] > leaves["rollout.num_groups"]:
        yield (
            f"filter.top_k = {leaves['filter.top_k']} groups are more than there are "
            f"(rollout.num_groups = {leaves['rollout.num_groups']}); use at most that"
        )


def _group_of_one(leaves: Leaves) -> Iterator[str]:
    score = leaves["filter.score"]
    keeps_all = keeps_every_group(leaves) and leaves["filter.keep_zero"]
    is_spread = compares_rows(SCORES[score])
    if leaves["rollout.group_size"] == 1 and is_spread and not keeps_all:
        yield (
            f"rollout.group_size = 1 leaves filter.score = {score!r} no spread to "
            "choose groups by; use a group size of at least 2, filter.keep_fraction = "
            f"1.0, or a score of single episodes: {single_row_entries(SCORES)}"
        )


def _no_effect(leaves: Leaves) -> Iterator[tuple[str, str]]:
    if not keeps_every_group(leaves):
        return
    reason = f"filter.rule = {leaves['filter.rule']!r} keeps every group here"
    yield "filter.direction", reason
    yield "filter.top_p_epsilon", reason
    if leaves["filter.keep_zero"]:
        yield "filter.loss_scale", reason


_SHARE = ("above 0 and at most 1", lambda x: 0 < x <= 1)
_ZERO_TO_ONE = ("between 0 and 1", lambda x: 0 <= x <= 1)

RULES = Rules(
    optional=(
        "filter.keep_fraction",
        "filter.top_k",
        "filter.top_p",
        "filter.min_p",
        "filter.quantile_low",
        "filter.quantile_high",
        "filter.rows_per_group",
    ),
    positive_integers=("filter.top_k", "filter.rows_per_group"),
    ranges={
        "filter.keep_fraction": (f"{_SHARE[0]} (all groups)", _SHARE[1]),
        "filter.top_p": (f"{_SHARE[0]} (all of the score's mass)", _SHARE[1]),
        "filter.min_p": (f"{_SHARE[0]} (as good as the best)", _SHARE[1]),
        "filter.quantile_low": _ZERO_TO_ONE,
        "filter.quantile_high": _ZERO_TO_ONE,
        "filter.top_p_epsilon": ("at least 0", lambda x: x >= 0),
    },
    choices={"filter.direction": DIRECTIONS},
    tables={
        "filter.score": SCORES,
        "filter.rule": filters.RULES,
        "filter.loss_scale": FILTER_LOSS_SCALES,
    },
    checks=(_options, _group_of_one),
    no_effect=(_no_effect,),
)
