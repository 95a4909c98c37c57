"""Imports that the garbage collector leaves alone."""

import gc

import pytest

from launch.command import lasting_objects


@pytest.fixture(autouse=True)
def nothing_stays_frozen():
    yield
    gc.unfreeze()
    assert gc.isenabled()


def test_what_is_made_inside_is_frozen_and_collection_goes_on():
    with lasting_objects():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(made)
    assert not any(x is made for x in gc.get_objects())
    # Cycles made later are still found.
    later = []
    later.append(later)
    del later
    assert gc.collect() >= 1


def test_an_error_inside_leaves_the_collector_on():
    with pytest.raises(ValueError, match="inside"), lasting_objects():
        raise ValueError("inside")
    assert gc.isenabled()
