"""The mesh and the map from logical axes, and what they refuse."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from ragen_jax.devices import sharding
from ragen_jax.devices.sharding import make_mesh, param_shardings
from ragen_jax.models.layers import LOGICAL_AXES as MODEL_AXES


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(data=2, fsdp=2, tensor=2)


def test_mesh(mesh):
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert set(mesh.axis_types) == {AxisType.Auto}
    one = make_mesh(data=1, fsdp=1, tensor=1)
    assert one.devices.size == 1
    with pytest.raises(ValueError, match=r"= 24 devices, but only 8 are available"):
        make_mesh(data=3, fsdp=8, tensor=1)


def test_every_axis_of_the_model_has_a_place():
    assert set(MODEL_AXES) == set(sharding.LOGICAL_AXES)
    places = set(sharding.LOGICAL_AXES.values()) | set(sharding.ROW_AXES)
    assert places - {None} == set(sharding.MESH_AXES)


def test_parameters_follow_their_axes(mesh):
    params = {"layer": {"kernel": jnp.ones((4, 6)), "scale": jnp.ones(5)}}
    axes = {"layer": {"kernel": ("embed", "mlp"), "scale": ("norm",)}}
    found = param_shardings(params, axes, mesh)
    assert found["layer"]["kernel"].spec == PartitionSpec("fsdp", "tensor")
    assert found["layer"]["scale"].is_fully_replicated
    kernel = jax.device_put(params, found)["layer"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 3)}


def test_rows_are_split(mesh):
    rows = jax.device_put(np.arange(8), sharding.by_rows(mesh))
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2,)}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"tensor": 4, "fsdp": 1}, r"mesh.tensor = 4 .* num_attention_heads = 14; use"),
        (
            {"tensor": 7, "fsdp": 1},
            r"mesh.tensor = 7 .* num_key_value_heads = 2; use a",
        ),
        ({"tensor": 1, "fsdp": 5}, r"mesh.fsdp = 5 .* hidden_size = 896; use a div"),
    ],
)
def test_a_network_that_cannot_be_split_is_refused(mesh, message):
    """Qwen2.5-0.5B: its queries are 896 wide, which 4 divides, in 14 heads."""
    sizes = {"hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151_936}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    model = types.SimpleNamespace(**sizes, **heads)
    with pytest.raises(ValueError, match=message):
        sharding.check_network(mesh, model)
    sharding.check_network({"tensor": 2, "fsdp": 8}, model)


def test_tables_are_split_along_the_vocabulary_alone(mesh):
    """While they are read; other parameters stay as they are."""
    params = {"table": jnp.ones((4, 6)), "kernel": jnp.ones((6, 4))}
    axes = {"table": ("vocab", "embed"), "kernel": ("embed", "mlp")}
    found = sharding.gather_vocab_tables(param_shardings(params, axes, mesh), axes)
    assert found["table"].spec == PartitionSpec("tensor", None)
    assert found["kernel"].spec == PartitionSpec("fsdp", "tensor")


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((4, 6), {}, r"\['w'\] has no logical axes"),
        ((4,), {"w": ("norm",), "v": ("norm",)}, r"\['v'\] has logical axes, but no"),
        ((4, 6), {"w": ("embed",)}, r"shape \(4, 6\), but logical axes \('embed',\)"),
        ((4, 6), {"w": ("embed", "width")}, r"'width'; .* knows vocab, embed"),
        ((4, 6), {"w": ("heads", "mlp")}, r"'heads' and 'mlp' both fall .*'tensor'"),
        ((5, 6), {"w": ("embed", "mlp")}, r"'embed' of size 5 .* mesh.fsdp = 2"),
    ],
)
def test_refusals(mesh, shape, axes, message):
    with pytest.raises(ValueError, match=message):
        param_shardings({"w": jnp.ones(shape)}, axes, mesh)


@pytest.mark.parametrize(
    ("platform", "kind", "capability", "expected"),
    [
        ("cpu", "cpu", None, "cpu"),
        ("gpu", "NVIDIA H100 80GB HBM3", "9.0", "gpu"),
        ("gpu", "NVIDIA B200", "10.0", "gpu"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "8.0", "gpu"),
        ("gpu", "Tesla T4", "7.5", "Tesla T4"),
        ("gpu", "AMD Instinct MI300X", "gfx942", "AMD Instinct MI300X"),
    ],
)
def test_kernels_need_gpus_that_can_run_them(platform, kind, capability, expected):
    device = types.SimpleNamespace(
        platform=platform, device_kind=kind, compute_capability=capability
    )
    mesh = types.SimpleNamespace(devices=np.array([[[device]]], object))
    assert sharding.kernel_platform(mesh) == expected


def test_memory_is_of_the_fullest_device_where_they_tell(monkeypatch):
    def devices(*peaks, platform="gpu"):
        found = [
            types.SimpleNamespace(
                platform=platform,
                memory_stats=lambda peak=peak: peak and {"peak_bytes_in_use": peak},
            )
            for peak in peaks
        ]
        monkeypatch.setattr(jax, "local_devices", lambda: found)

    devices(5, 7)
    assert sharding.peak_memory() == 7
    devices(5, None)
    assert sharding.peak_memory() is None
    # A process with NumPy and JAX, in bytes.
    devices(5, platform="cpu")
    assert 50e6 < sharding.peak_memory() < 1e12
