"""The reader of compiled programs, on texts that are written here."""

import pytest

from benchmarks import hlo

TEXT = """HloModule jit_step, is_scheduled=true

FileNames
1 "/home/a/ragen_jax/rollout/decode.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=120 end_line=120 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum.0 = f32[] add(%a, %b)
}

%sums (rows: f32[8,100]) -> f32[8] {
  %rows = f32[8,100]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %sums.0 = f32[8]{0} reduce(%rows, %zero), dimensions={1}, to_apply=%add
}

%taken (table: f32[8,100], at: s32[]) -> f32[8,5] {
  %table = f32[8,100]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %none = s32[] constant(0)
  %larger = f32[8,100]{1,0} exponential(%table)
  ROOT %slice.0 = f32[8,5]{1,0} dynamic-slice(%larger, %none, %at), dynamic_slice_sizes={8,5}
}

%put (cache: bf16[8,64], new: bf16[8,1], at: s32[]) -> bf16[8,64] {
  %cache = bf16[8,64]{1,0} parameter(0)
  %new = bf16[8,1]{1,0} parameter(1)
  %at.1 = s32[] parameter(2)
  %none.1 = s32[] constant(0)
  ROOT %put.0 = bf16[8,64]{1,0} dynamic-update-slice(%cache, %new, %none.1, %at.1)
}

%body (carry: (s32[], bf16[8,64], f32[8,100])) -> (s32[], bf16[8,64], f32[8,100]) {
  %carry = (s32[], bf16[8,64]{1,0}, f32[8,100]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %kept = bf16[8,64]{1,0} get-tuple-element(%carry), index=1
  %all = f32[8,100]{1,0} get-tuple-element(%carry), index=2
  %few = f32[8,5]{1,0} fusion(%all, %i), kind=kLoop, calls=%taken
  %total = f32[8]{0} fusion(%all), kind=kInput, calls=%sums, metadata={op_name="jit(step)/decode/sum" stack_frame_id=1}
  %fresh = bf16[8,1]{1,0} convert(%total)
  %after = bf16[8,64]{1,0} fusion(%kept, %fresh, %i), kind=kLoop, calls=%put
  %mine = (bf16[8,16]{1,0}, bf16[8,64]{1,0}) custom-call(%fresh, %after), custom_call_target="kernel", output_to_operand_aliasing={{1}: (1, {})}, api_version=API_VERSION_TYPED_FFI
  %last = bf16[8,64]{1,0} get-tuple-element(%mine), index=1
  %gathered = f32[8,100]{1,0} all-gather(%total), replica_groups=[2,4]<=[8], dimensions={1}
  ROOT %out = (s32[], bf16[8,64]{1,0}, f32[8,100]{1,0}) tuple(%i, %last, %gathered)
}

%condition (carry.1: (s32[], bf16[8,64], f32[8,100])) -> pred[] {
  %carry.1 = (s32[], bf16[8,64]{1,0}, f32[8,100]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (x: (s32[], bf16[8,64], f32[8,100])) -> (s32[], bf16[8,64], f32[8,100]) {
  %x = (s32[], bf16[8,64]{1,0}, f32[8,100]{1,0}) parameter(0)
  ROOT %loop = (s32[], bf16[8,64]{1,0}, f32[8,100]{1,0}) while(%x), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"7"}}
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def program():
    return hlo.Program(TEXT)


@pytest.fixture(scope="module")
def by_name(program):
    return {one.name: (one, loops) for one, loops in program.visit()}


def test_kernels_are_what_stands_outside_of_fusions(by_name):
    kernels = [name for name, (one, _) in by_name.items() if one.is_kernel]
    assert kernels == ["few", "total", "fresh", "after", "mine"]


def test_loops_are_known_with_their_length(by_name):
    assert by_name["few"][1] == (hlo.Loop("loop", 7),)
    assert by_name["loop"][1] == ()


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        # All of the table; the sums.
        ("total", 8 * 100 * 4, 8 * 4),
        # Of the table what the slice needs, through an exponential; the index.
        ("few", 8 * 5 * 4 + 4, 8 * 5 * 4),
        # In place: the cache is not read, a column of it is written.
        ("after", 8 * 2 + 4, 8 * 2),
        # A kernel of ours: what it writes into is read, and not counted as written.
        ("mine", 8 * 2 + 8 * 64 * 2, 8 * 16 * 2),
    ],
)
def test_traffic(program, by_name, name, read, written):
    assert program.traffic(by_name[name][0]) == (read, written)


def test_of_a_cache_that_is_half_filled_half_is_read(program, by_name):
    read, _ = program.traffic(by_name["mine"][0], live=0.5)
    assert read == 8 * 2 + 8 * 64


def test_the_line_an_instruction_comes_from(program, by_name):
    source = program.source(by_name["total"][0])
    assert source == "/home/a/ragen_jax/rollout/decode.py:120"
    assert not program.source(by_name["few"][0])
    assert by_name["total"][0].op_name == "jit(step)/decode/sum"


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="not the text of a compiled program"):
        hlo.Program("HloModule nothing")
