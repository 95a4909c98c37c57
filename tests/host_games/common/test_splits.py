"""Splits by content: golden values, for a change would move problems between them."""

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.splits import (
    split_of,
    split_of_hash,
    stable_hash,
    text_hash,
)


def test_hashes_are_the_same_in_every_version():
    assert text_hash("a") == 4681665781835383343
    # Of `printf "('a', 1)" | b2sum -l 64`.
    assert stable_hash("a", 1) == 0x9A7F386FD1AFB2AC == 11132678856793633452


def test_parts_are_kept_apart():
    assert stable_hash("a", "bc") != stable_hash("ab", "c")
    assert stable_hash("a", 1) != stable_hash("a", "1")


def test_a_tenth_of_texts_is_for_validation_whatever_their_case_and_blanks():
    splits = [split_of(f"question {i}") for i in range(1_000)]
    assert splits == [split_of(f" QUESTION\n {i} ") for i in range(1_000)]
    assert 52 < splits.count("validation") < 148
    assert "".join(split[0] for split in splits[:3]) == "tvt"
    assert split_of("\ud800") in SPLITS


def test_one_hash_in_so_many_is_for_validation():
    splits = [split_of_hash(number, 4) for number in range(8)]
    assert splits == ["validation", *["training"] * 3] * 2
