"""`launch.plan` as users call it."""

import os
import shutil
import subprocess
import sys

import jax
import pytest

from configs import sokoban
from launch import command
from launch.plan_choices import more_devices, other_presets
from ragen_jax.config import validate
from ragen_jax.memory import plan as memory_plan
from ragen_jax.memory import reduce
from ragen_jax.memory.devices import detected_device, named_device
from ragen_jax.memory.plan import Plan
from ragen_jax.memory.programs import MemoryUse
from ragen_jax.program.build import POCKET
from tests import commands


def test_a_configuration_that_fits(tmp_path):
    """A folder without weights will do."""
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(POCKET / name, tmp_path)
    tiny = {k: v for k, v in commands.UNTESTED.items() if k != "rollout.max_turns"}
    words = commands.command(
        "plan",
        "--config=configs/sokoban.py",
        "--device=rtx-4090",
        f"--config.model.path={tmp_path}",
        "--config.rollout.max_turns=1",
        "--config.model.attention=cudnn",
        "--config.rollout.decode_attention=triton",
        *(f"--config.{key}={value}" for key, value in tiny.items()),
    )
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    assert "accuracy: estimated by formula for rtx-4090, within 25 %" in done.stdout
    assert "planned with model.attention = 'auto': 'cudnn' cannot be" in done.stdout
    assert "planned with rollout.decode_attention = 'auto': 'triton'" in done.stdout
    assert "837,760" in done.stdout
    assert "fits: 0.0" in done.stdout
    assert (
        max(
            map(len, done.stdout.split("bytes per")[1].split("accuracy")[0].split("\n"))
        )
        <= 80
    )
    assert "evaluation" not in done.stdout  # there is none in this run
    for word in ("optimizer moments", "gradients", "KV cache", "update", "temporary"):
        assert word in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device=gtx-1"], "no device 'gtx-1'; choose one of t4, "),
        (["--config.model.path=/nowhere"], "there is no folder /nowhere"),
        (["--config.model.remat=layer"], "model.remat = 'layer'; choose one of"),
        (["--config.learner.microbatch_rows=5"], "is not a multiple of"),
        (["--target=gtx-1"], "no target 'gtx-1': programs are compiled for a100-80gb,"),
        (["--target=h100", "--topology=8"], "topology '8': use 1xHOSTSxGPUS"),
        (["--target=h100", "--topology=1x1x8"], "has 8 GPUs, but mesh.data x"),
        (
            ["--target=h100", "--topology=1x2x8", "--config.mesh.tensor=16"],
            "would split layers between hosts of 8 GPUs",
        ),
        (["--topology=1x1x8"], "--topology=1x1x8 needs --target"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words, sentence):
    line = commands.command("plan", "--config=configs/sokoban.py", *words)
    done = commands.call(line)
    assert done.returncode == 2
    *_, first, second = done.stderr.strip().splitlines()
    assert sentence in first
    assert first.startswith("error: ")
    assert second == command.HINTS["training"]
    assert not done.stdout


def test_the_compiler_for_gpus_is_named_where_it_is_missing():
    code = (
        "from absl import flags; from configs import sokoban; from launch import plan;"
        "from ragen_jax.memory import targets; targets.has_compiler = lambda: False;"
        "flags.FLAGS(['plan', '--target=h100']);"
        "print(plan._described_devices(sokoban.get_config()))"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, cwd=commands.ROOT, capture_output=True, text=True, check=False
    )
    assert "is not installed" in done.stdout, done.stderr
    assert '[cuda]"' in done.stdout


def plan_of(preset: str, device: str, *words: str):
    line = [f"--config=configs/sokoban.py:{preset}", f"--device={device}", *words]
    return commands.call(commands.command("plan", *line))


@pytest.mark.slow
def test_a_fit_within_the_error_of_its_estimate_is_none(monkeypatch):
    """23.35 GiB of 22.07, estimated within 25 %; presets and devices with room."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = plan_of("qwen2.5-0.5b", "rtx-4090")
    assert done.returncode == 1, done.stderr
    assert "too close to tell, as the count may be off by 25 %: 23.350" in done.stdout
    presets = "--config=configs/sokoban.py:qwen2.5-0.5b-24gb"
    assert f"\n  fits: {presets} (10.582 GiB, estimated)\n" in done.stdout
    assert "fits: --config.mesh.fsdp=2 (12.136 GiB, estimated, 2 devices)" in (
        done.stdout
    )
    assert "this fits: 9.899 GiB" in done.stdout
    done = plan_of("qwen2.5-0.5b-24gb", "rtx-4090")
    assert done.returncode == 0
    assert "\nfits: 10.582 GiB" in done.stdout


@pytest.mark.parametrize(
    ("peak", "status", "said"),
    [
        (0.74, 0, "\nfits: "),
        (0.76, 1, "\ntoo close to tell, as the count may be off by 25 %: "),
        (1.24, 1, "\ntoo close to tell, as the count may be off by 25 %: "),
        (1.26, 1, "\ndoes not fit: "),
    ],
)
def test_the_verdict_knows_the_error(peak, status, said, monkeypatch):
    limit = named_device("rtx-4090").limit
    use = MemoryUse(0, 0, int(peak * limit), 0)
    fake = Plan({}, {}, {"update": use}, {"update": 0}, floor=0)
    monkeypatch.setattr(memory_plan, "make_plan", lambda *_, **__: fake)
    done = plan_of("pocket", "rtx-4090", "--nosearch")
    assert done.returncode == status, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("update", "rollout", "said"),
    [
        (0.94, 0.5, "\nfits: "),
        (1.04, 0.5, "\ntoo close to tell, as the count may be off by 5 %: "),
        (1.79, 0.5, "\ntoo close to tell, as the update may be counted 1.8 times"),
        (1.79, 1.04, "\ntoo close to tell, as the update may be counted 1.8 times"),
        (1.79, 1.1, "\ndoes not fit: "),
        (1.81, 0.5, "\ndoes not fit: "),
        (0.5, 1.1, "\ndoes not fit: "),
    ],
)
def test_a_cpus_count_of_a_gpus_update_may_be_too_high(
    update, rollout, said, monkeypatch
):
    limit = named_device("rtx-4090").limit
    shares = {"update": update, "rollout": rollout}
    uses = {x: MemoryUse(0, 0, int(shares[x] * limit), 0) for x in shares}
    fake = Plan({}, {}, uses, dict.fromkeys(uses, 0), floor=0)
    monkeypatch.setattr(memory_plan, "make_plan", lambda *_, **__: fake)
    done = plan_of("pocket", "rtx-4090", "--nosearch", "--compile")
    assert said in done.stdout, done.stderr
    assert done.returncode == (0 if "nfits" in repr(said) else 1)


def test_presets_of_the_same_model_are_found_with_what_was_asked():
    config = sokoban.get_config("qwen2.5-3b,grpo")
    config.evaluation.num_prompts = 32
    source, keys = "configs/sokoban.py:qwen2.5-3b,grpo", ["evaluation.num_prompts"]
    ((words, other),) = other_presets(config, source, keys)
    assert words == "--config=configs/sokoban.py:qwen2.5-3b-8gpus,grpo"
    assert (other.mesh.fsdp, other.algo.advantage) == (8, "grpo")
    assert other.evaluation.num_prompts == 32
    assert [*other_presets(config, "configs/sokoban.py", [])] == []
    assert [words for words, _ in more_devices(config)] == [
        "--config.mesh.fsdp=2",
        "--config.mesh.fsdp=4",
        "--config.mesh.fsdp=8 --config.learner.microbatch_rows=8",
    ]


@pytest.fixture
def fake_plans(monkeypatch):
    """Sets the peak that is planned for a configuration; the search finds nothing."""

    def fake(peak):
        def make_plan(config, *_, **__):
            use = MemoryUse(0, 0, int(peak(config)), 0)
            return Plan({}, {}, {"update": use}, {"update": 0}, floor=0)

        monkeypatch.setattr(memory_plan, "make_plan", make_plan)
        monkeypatch.setattr(reduce, "find_fix", lambda *_, **__: None)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    return fake


def test_what_needs_more_devices_than_there_are_is_named(fake_plans, monkeypatch):
    fake_plans(lambda config: 2**40)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    said = " ".join(plan_of("qwen2.5-3b", "h100").stdout.split())
    assert (
        "on more devices than the 1 here, not planned: "
        "--config=configs/sokoban.py:qwen2.5-3b-8gpus (8), --config.mesh.fsdp=2 (2), "
        "--config.mesh.fsdp=4 (4), --config.mesh.fsdp=8 "
        "--config.learner.microbatch_rows=8 (8); JAX_PLATFORMS=cpu with --device"
    ) in said


@pytest.mark.parametrize(("share", "is_offered"), [(0.09, True), (0.1, False)])
def test_devices_of_a_cpu_share_its_memory(fake_plans, share, is_offered):
    """Eight times 0.09 are less than three quarters, eight times 0.1 are more."""
    limit = detected_device().limit
    fake_plans(lambda config: limit * (2 if config.mesh.fsdp == 1 else share))
    words = ["--config=configs/sokoban.py:qwen2.5-3b"]
    said = commands.call(commands.command("plan", *words)).stdout
    assert ("fits: --config=configs/sokoban.py:qwen2.5-3b-8gpus" in said) == is_offered


def test_more_devices_have_whole_groups_where_prompts_are_shared():
    config = sokoban.get_config("qwen2.5-3b,grpo")
    config.learner.share_prompts = True
    config.learner.microbatch_rows = config.rollout.group_size
    choices = [*more_devices(config)]
    assert [words for words, _ in choices] == [
        f"--config.mesh.fsdp={n} --config.learner.microbatch_rows={16 * n}"
        for n in (2, 4, 8)
    ]
    validate(choices[0][1])


def plan_on_plain_cpu(*words):
    """A plan in a process in which JAX splits the CPU only when it is asked to."""
    words = commands.command("plan", *words, "--search=False")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def test_a_game_of_ones_own_is_planned():
    """Importing it makes JAX look for devices."""
    words = [
        "--config=configs/world.py",
        "--config.env.host=tests.host_games.games:Faulty",
    ]
    done = plan_on_plain_cpu(*words)
    assert done.returncode == 0, done.stderr
    assert "programs per device" in done.stdout


def test_a_game_of_ones_own_on_more_devices_than_were_counted():
    words = ["--config=configs/game.py", "--config.env.name=envs.bandit.env:Bandit"]
    done = plan_on_plain_cpu(*words, "--config.mesh.data=16")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=16" in done.stderr
