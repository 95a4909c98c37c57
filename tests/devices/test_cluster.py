"""The place of a process according to its environment."""

import pytest

from ragen_jax.devices.cluster import find_place
from tests import commands

SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NODELIST": "gpu[03-07,9]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    # Of the whole job, and of other steps.
    "SLURM_NTASKS": "8",
    "SLURM_NODELIST": "gpu[01-09]",
}
OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp://10.0.0.5,10.1.0.5:43370",
}
KUBERNETES = {
    "RAGEN_JAX_FIRST_HOST": "ragen-train-0-0.ragen",
    "RAGEN_JAX_NUM_PROCESSES": "2",
    "JOB_COMPLETION_INDEX": "1",
}


@pytest.mark.parametrize(
    ("environ", "source", "address", "total", "number"),
    [
        (SLURM, "slurm", "gpu03:24567", 4, 2),
        (OPENMPI, "openmpi", "10.0.0.5:20928", 2, 1),
        (KUBERNETES, "kubernetes", "ragen-train-0-0.ragen:20000", 2, 1),
    ],
)
def test_the_environment_names_the_process(environ, source, address, total, number):
    assert find_place("auto", environ) == (source, address, total, number)
    assert find_place(source, environ)[1:] == (address, total, number)
    assert find_place("off", environ) is None


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node003", "node003"),
        ("node003,other", "node003"),
        ("node[003-007,9],x1", "node003"),
        ("node[3,5]", "node3"),
        ("n[01-02].rack1", "n01.rack1"),
        ("rack-a,rack-b[1-2]", "rack-a"),
    ],
)
def test_the_first_host_of_slurms_list(hosts, first):
    place = find_place("slurm", SLURM | {"SLURM_STEP_NODELIST": hosts})
    assert place.address == f"{first}:24567"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        # A batch script outside of `srun` has no step.
        {k: v for k, v in SLURM.items() if "STEP" not in k},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        KUBERNETES | dict.fromkeys(list(KUBERNETES)[:2], ""),
        KUBERNETES | {"RAGEN_JAX_NUM_PROCESSES": "1", "JOB_COMPLETION_INDEX": "0"},
        # A pod of some indexed job.
        {"JOB_COMPLETION_INDEX": "3"},
    ],
)
def test_without_a_scheduler_the_command_runs_alone(environ):
    assert find_place("auto", environ) is None


def test_processes_are_named_by_hand():
    place = find_place("node0:2100,3,2", {})
    assert place == ("--distributed", "node0:2100", 3, 2)
    assert find_place("[fe80::1]:2100,2,0", {}).address == "[fe80::1]:2100"
    assert find_place("node0:2100,1,0", {}) is None


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("slrum", "not one of auto, off, openmpi, slurm, kubernetes or HOST:PORT"),
        ("node0,2,1", "not one of auto"),
        ("node0:2100,2,2", "the number of this process 0 to 1"),
        ("node0:99999,2,0", "the port must be 1 to 65535"),
        ("slurm", "SLURM_STEP_NODELIST.*is not set: start the command with srun"),
        ("openmpi", "mpirun"),
        ("kubernetes", "JobSet"),
    ],
)
def test_malformed_places_are_refused(value, sentence):
    with pytest.raises(ValueError, match=sentence):
        find_place(value, {})


def test_mpirun_without_an_address_is_refused_with_advice():
    environ = {k: v for k, v in OPENMPI.items() if "uri" not in k}
    with pytest.raises(ValueError, match="--distributed=HOST:PORT"):
        find_place("auto", environ)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (SLURM | {"SLURM_PROCID": "x"}, "variables of slurm.*invalid literal"),
        (
            {k: v for k, v in OPENMPI.items() if "RANK" not in k},
            "OMPI_COMM_WORLD_RANK is not set",
        ),
        (KUBERNETES | {"JOB_COMPLETION_INDEX": "2"}, "process 2 of 2"),
        *(
            ({k: v for k, v in KUBERNETES.items() if k != name}, f"{name} is not set")
            for name in KUBERNETES
        ),
    ],
)
def test_variables_that_name_no_process_are_refused(environ, sentence):
    with pytest.raises(ValueError, match=sentence):
        find_place("auto", environ)


def test_mpirun_in_a_job_of_slurm_names_the_processes():
    assert find_place("auto", SLURM | OPENMPI).source == "openmpi"


def test_steps_side_by_side_have_their_own_ports():
    assert find_place("auto", SLURM | {"SLURM_STEP_ID": "1"}).address == "gpu03:24664"


def test_a_wrong_flag_is_one_sentence(tmp_path):
    words = commands.train_command("pocket", tmp_path / "run")
    refused = commands.call([*words, "--distributed=node0"])
    assert refused.returncode == 2
    assert "error: --distributed='node0' is not one of" in refused.stderr
    assert not (tmp_path / "run").exists()
