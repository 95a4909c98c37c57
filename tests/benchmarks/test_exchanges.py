"""The reader of exchanges, on texts that are written here."""

import re

import pytest

from benchmarks.exchanges import collectives, total

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8

%body (carry: (s32[], f32[8,100])) -> (s32[], f32[8,100]) {
  %carry = (s32[], f32[8,100]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %part = f32[8,25]{1,0} get-tuple-element(%carry), index=1
  %gathered = KIND, replica_groups=[2,4]<=[8], dimensions={1}, use_global_device_ids=true
  ROOT %out = (s32[], f32[8,100]{1,0}) tuple(%i, %gathered)
}

%condition (carry.1: (s32[], f32[8,100])) -> pred[] {
  %carry.1 = (s32[], f32[8,100]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (x: (s32[], f32[8,100])) -> (s32[], f32[8,100]) {
  %x = (s32[], f32[8,100]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[8,100]{1,0}) while(%x), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"7"}}
}
"""  # noqa: E501
GATHER = "f32[8,100]{1,0} all-gather(%part)"


_LOOP = "while(%x), condition=%condition, body=%body"
# Around it, both of unknown length, a loop that sums over all devices after it.
NESTED = TEXT.replace("KIND", GATHER).replace(
    _LOOP, "while(%x), condition=%condition, body=%minibatch"
)
NESTED = re.sub(", backend_config={.*}", "", NESTED).replace(
    "ENTRY",
    f"""%minibatch (x.2: (s32[], f32[8,100])) -> (s32[], f32[8,100]) {{
  %x.2 = (s32[], f32[8,100]{{1,0}}) parameter(0)
  %passes = (s32[], f32[8,100]{{1,0}}) {_LOOP.replace("%x", "%x.2")}
  %i.2 = s32[] get-tuple-element(%passes), index=0
  %last = f32[8,100]{{1,0}} get-tuple-element(%passes), index=1
  %sum = f32[8,100]{{1,0}} all-reduce(%last), replica_groups={{}}
  ROOT %out.2 = (s32[], f32[8,100]{{1,0}}) tuple(%i.2, %sum)
}}

ENTRY""",
)


def read(kind=GATHER, groups="replica_groups=[2,4]<=[8]"):
    text = TEXT.replace("KIND", kind)
    (one,) = collectives(text.replace("replica_groups=[2,4]<=[8]", groups))
    return one


def test_an_exchange_with_its_groups():
    one = read()
    assert (one.kind, one.num_bytes, one.times, one.depth) == ("all-gather", 3200, 7, 1)
    assert one.open_depth == 0
    assert one.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert one.sizes == {8, 100}
    assert total([one, one], "all-gather") == 2 * 7 * 3200


@pytest.mark.parametrize(
    ("kind", "made", "received"),
    [
        # Three quarters come from the other three.
        (GATHER, 3200, 2400),
        ("f32[8,25]{1,0} reduce-scatter(%part)", 800, 2400),
        ("f32[8,25]{1,0} all-reduce(%part)", 800, 1200),
        ("f32[8,25]{1,0} all-to-all(%part)", 800, 600),
        # The start of an exchange repeats its operands, of a sum it does not.
        ("(f32[8,25]{1,0}, f32[8,100]{1,0}) all-gather-start(%part)", 3200, 2400),
        ("(f32[8,100]{1,0}, f32[8,25]{1,0}) reduce-scatter-start(%part)", 800, 2400),
        (
            "((f32[2]{0}, f32[4]{0}), (f32[8]{0}, f32[16]{0})) "
            "all-gather-start(%part, %i)",
            96,
            72,
        ),
        ("f32[8,25]{1,0} all-reduce-start(%part)", 800, 1200),
        ("(f32[4]{0}, f32[8]{0}) all-reduce-start(%part, %i)", 48, 72),
        ("f32[8,25]{1,0} collective-permute(%part)", 800, 800),
    ],
)
def test_bytes_of_each_kind(kind, made, received):
    one = read(kind)
    assert one.num_bytes == made
    assert one.received == 7 * received


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("replica_groups={}", (tuple(range(8)),)),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
        ("replica_groups=mesh['a'=4] {'a'}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
        # Two hosts of four, their rows first split inside of a host.
        (
            "replica_groups=mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}",
            ((0, 1, 2, 3), (4, 5, 6, 7)),
        ),
        (
            "replica_groups=mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'c'}",
            ((0, 4), (1, 5), (2, 6), (3, 7)),
        ),
        # Parts of an axis: the first two of four, the last two.
        ("replica_groups=mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3))),
    ],
)
def test_groups_in_every_form(text, groups):
    assert sorted(read(groups=text).groups) == sorted(groups)


def test_which_loop_is_the_innermost():
    """Of unknown length: a loop of known length is part of what it stands in."""
    found = {
        one.kind: (one.open_depth, one.is_innermost) for one in collectives(NESTED)
    }
    assert found == {"all-gather": (2, True), "all-reduce": (1, False)}
    assert not read().is_innermost
    known = NESTED.replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    )
    gathered, summed = collectives(known)
    assert (gathered.open_depth, gathered.times) == (1, 7)
    assert gathered.is_innermost
    assert summed.is_innermost


def test_another_form_is_refused():
    with pytest.raises(ValueError, match="cannot be read: %gathered"):
        read(groups="replica_groups=all of them")
