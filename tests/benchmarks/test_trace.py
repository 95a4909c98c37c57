"""Time by kernel, from a profile that is written here."""

import types

import pytest

from benchmarks import trace


def event(name: str, began: float, duration: float):
    return types.SimpleNamespace(name=name, start_ns=began, duration_ns=duration)


def profile(**planes):
    """Plane -> line -> events, as JAX's `ProfileData` has them."""
    return types.SimpleNamespace(
        planes=[
            types.SimpleNamespace(
                name=name.replace("_", ":"),
                lines=[
                    types.SimpleNamespace(name=line, events=events)
                    for line, events in lines.items()
                ],
            )
            for name, lines in planes.items()
        ]
    )


def test_only_what_ran_on_a_gpus_streams_counts():
    gpu = {
        "Stream #13(Compute)": [event("gemm_1", 0, 10), event("gemm_2", 30, 10)],
        "XLA Ops": [event("gemm", 0, 40)],
    }
    found = trace.gpu_launches(
        profile(**{"/device_GPU_0": gpu, "/host_CPU": {"Stream": [event("x", 0, 1)]}})
    )
    assert found == [("gemm_1", 0, 10), ("gemm_2", 30, 40)]


def test_streams_that_overlap_are_busy_once():
    launches = [("a", 0, 10), ("b", 5, 8), ("c", 7, 20), ("d", 30, 40)]
    assert trace.busy_seconds(launches) == pytest.approx(30e-9)
    assert trace.busy_seconds([]) == 0.0


def test_launches_are_added_up_by_name(monkeypatch):
    launches = [("fusion_1", 0, 1e9), ("fusion_2.3", 2e9, 5e9), ("gemm", 0, 2e9)]
    monkeypatch.setattr(trace, "gpu_launches", lambda profile: launches)
    times = trace.kernel_times(lambda: None)
    assert times["kernels"] == {"fusion": [2, 4.0], "gemm": [1, 2.0]}
    assert times["busy_s"] == pytest.approx(5.0)
