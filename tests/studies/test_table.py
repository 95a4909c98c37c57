"""Every study as it is written down: valid, complete, judged by measures there are."""

import dataclasses
import pathlib

import pytest

from ragen_jax.config import validate
from ragen_jax.sft.rules import validate as validate_sft
from studies.claims import Claim, Difference
from studies.configs import arm_config
from studies.measures import MEASURES
from studies.run import is_kept
from studies.table import STUDIES, distinct_arms, find_studies
from tests.studies.runs import ONE, OTHER

DOCS = pathlib.Path(__file__).parents[2] / "docs"
ARMS = distinct_arms(STUDIES.values())


@pytest.mark.parametrize("is_quick", [False, True])
def test_every_arm_has_a_valid_configuration(is_quick):
    for arm in ARMS:
        config = arm_config(arm, is_quick=is_quick)
        (validate_sft if arm.is_sft else validate)(config)


def test_committed_records_are_of_these_settings():
    for arm in ARMS:
        # Refuses others.
        is_kept(DOCS / "study", arm, arm_config(arm, is_quick=False))


def test_arms_differ():
    """Two names for the same settings would be run twice."""
    settings = [arm_config(arm, is_quick=False).to_json_best_effort() for arm in ARMS]
    assert len(set(settings)) == len(ARMS)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_studies_are_complete(study):
    assert study.claims
    assert len({claim.text for claim in study.claims}) == len(study.claims)
    for claim in study.claims:
        assert claim.test.measure in MEASURES
        assert len(claim.text) < 100
    assert set(study.columns) <= MEASURES.keys()
    assert all(arm.num_seeds >= 3 for arm in study.arms)


def test_studies_are_found_by_name():
    assert [study.name for study in find_studies("keep,clip,keep")] == ["keep", "clip"]
    # All but the one whose model has to be fetched.
    assert STUDIES.keys() - {study.name for study in find_studies("all")} == {"real"}
    with pytest.raises(ValueError, match=r"no study 'kep'\. Did you mean 'keep'"):
        find_studies("kep")


def test_one_name_means_one_arm():
    changed = dataclasses.replace(ONE, num_seeds=3)
    study = STUDIES["keep"]
    others = [
        dataclasses.replace(study, claims=(Claim("", Difference(a, OTHER)),))
        for a in (ONE, changed)
    ]
    with pytest.raises(ValueError, match="two arms are named sokoban-one"):
        distinct_arms(others)
