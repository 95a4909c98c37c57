"""Described GPUs: names, topologies and meshes, without the compiler for them."""

import pytest

from ragen_jax.memory import targets
from ragen_jax.memory.devices import named_device


@pytest.mark.parametrize("name", targets.TARGETS)
def test_every_target_is_a_device_of_the_plan(name):
    target = targets.named_target(name)
    assert target.name == name
    # The driver keeps a part of the memory that the table of devices has.
    assert 0.97 < target.memory / named_device(name).memory < 1.03
    text = target.description
    assert f"core_count: {target.cores} " in text
    assert f'"{target.label}"' in text
    assert text.count("{") == text.count("}")


def test_an_unknown_target_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no target 'v100': .* a100-80gb, h100"):
        targets.named_target("v100")


@pytest.mark.parametrize("topology", ["8", "1x8", "2x1x8", "1x0x8", "1x1x8x1", "1x1x"])
def test_a_topology_of_another_form_is_refused(topology):
    with pytest.raises(ValueError, match=r"use 1xHOSTSxGPUS, e\.g\. 1x1x8"):
        targets.hosts_and_devices(topology)


@pytest.mark.parametrize(
    ("topology", "mesh", "problem"),
    [
        ("1x1x8", (1, 8, 1), None),
        ("1x32x8", (4, 8, 8), None),
        ("1x1x8", (1, 1, 1), "1x1x8 has 8 GPUs, but mesh.data x mesh.fsdp x mesh.tens"),
        ("1x2x8", (1, 1, 16), "tensor = 16 would split layers between hosts of 8 GPUs"),
        ("1x2x6", (3, 1, 4), "use a divisor of 6, and mesh.fsdp or mesh.data beyond"),
    ],
)
def test_a_mesh_has_the_topology_s_gpus_and_keeps_layers_in_a_host(
    topology, mesh, problem
):
    mesh = dict(zip(("data", "fsdp", "tensor"), mesh, strict=True))
    if problem is None:
        targets.check_mesh(mesh, topology)
        return
    with pytest.raises(ValueError, match=problem):
        targets.check_mesh(mesh, topology)
