"""Plans: the same sizes as a real program's, and what cannot be planned."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import pytest

from configs import bandit, sizes, sokoban
from ragen_jax.memory.devices import DEVICES, USABLE, detected_device, named_device
from ragen_jax.memory.plan import make_plan, read_model
from ragen_jax.memory.programs import MemoryUse
from ragen_jax.memory.published import PUBLISHED_MODELS
from ragen_jax.memory.sizes import tree_bytes
from ragen_jax.models.policy import abstract_params
from ragen_jax.program.build import BUILT_IN, POCKET, build_program, num_params
from ragen_jax.program.lowering import PROGRAMS
from ragen_jax.text.tokenizer import load_tokenizer
from tests import commands

SCALING = pathlib.Path(__file__).parents[2] / "benchmarks/results/scaling.json"
GIVEN = dict.fromkeys(
    PROGRAMS, MemoryUse(arguments=10, outputs=5, temporaries=7, aliased=2)
)


def tiny_config(preset="pocket", **changes):
    return commands.tiny_config(sokoban, presets=preset, **changes)


def plan_of(config, known=GIVEN, **how):
    model, tokenizer, notes = read_model(config.model.path)
    assert not notes
    return make_plan(config, model, tokenizer, known, **how)


def test_a_shared_prompt_is_counted_once():
    """Activations of 4 rows of 8 tokens and the message, not of 4 messages."""
    one_turn = {"rollout__max_turns": 1, "learner__minibatch_rows": 8}
    kept = [
        plan_of(tiny_config("pocket,grpo", **one_turn, learner__share_prompts=share))
        for share in (False, True)
    ]
    whole, shared = (
        plan.holdings["activations kept for one backward pass"] for plan in kept
    )
    opening = 65
    tokens = 4 * (opening + 8), (opening - 1) + 4 * (8 + 1)
    # Attention's scores and weights are not proportional to the tokens.
    assert shared / whole == pytest.approx(tokens[1] / tokens[0], rel=0.1)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("pocket,grpo", {}),
        ("pocket,ppo,starpo", {}),
        ("pocket,ppo", {"lora__rank": 2}),
        ("pocket,grpo,starpo", {"mesh__fsdp": 2, "mesh__tensor": 2}),
    ],
)
def test_a_plan_describes_the_state_that_a_run_makes(preset, changes):
    config = tiny_config(preset, **changes)
    plan, state = plan_of(config), build_program(config).state
    networks = [n for n in (state.policy, state.critic) if n is not None]
    weights = tree_bytes([n.params for n in networks])
    assert plan.holdings["weights that are trained"] == weights
    assert plan.holdings["gradients"] == weights
    moments = tree_bytes([n.opt_state for n in networks])
    assert plan.holdings["optimizer moments"] == moments
    frozen = plan.holdings["weights that are frozen"]
    assert plan.floor == tree_bytes(state) + frozen + weights
    has_frozen = config.lora.rank is not None or config.kl.placement is not None
    assert (frozen > 0) == has_frozen
    trained = plan.counts.get("adapters of the policy", plan.counts["policy"])
    assert trained == num_params(state.params)
    if state.critic is not None:
        assert plan.counts["critic, trained"] == num_params(state.critic.params)


def test_split_arrays_count_once_per_device():
    whole, split = (
        plan_of(tiny_config(mesh__fsdp=n)).holdings["KV cache of a rollout"]
        for n in (1, 2)
    )
    assert split == whole / 2
    array = jax.device_put(
        jax.numpy.zeros((8, 3)),
        jax.NamedSharding(jax.make_mesh((4,), ("x",)), jax.P("x")),
    )
    assert tree_bytes({"a": array, "b": None}) == 2 * 3 * 4


def test_the_peak_counts_what_is_held_beside_a_program():
    plan = plan_of(tiny_config("pocket,grpo"))
    assert GIVEN["update"].peak == 10 + 5 + 7 - 2
    moments = plan.holdings["optimizer moments"]
    # The policy that plays is an argument; its moments are not.
    assert plan.elsewhere["rollout"] >= moments
    assert plan.elsewhere["update"] < moments
    assert plan.largest == "evaluation"
    assert plan.peak == plan.elsewhere["evaluation"] + 20


def test_a_checkpoint_that_is_saved_takes_the_memory_of_a_cpu():
    config = tiny_config("pocket,grpo")
    on_gpu, on_cpu = (plan_of(config, on_cpu=on_cpu) for on_cpu in (False, True))
    state = on_cpu.floor - on_cpu.holdings["gradients"]
    assert on_cpu.holdings["a checkpoint while it is saved"] == 2 * state
    assert on_cpu.peak == on_gpu.peak + 2 * state
    assert on_gpu.holdings["a checkpoint while it is saved"] == 0


# What the formula adds up, in programs that differ in every part of it.
ESTIMATED = {
    "PPO, layers computed twice": (sokoban, "pocket,ppo", {"model__remat": "layers"}),
    "a window, bfloat16": (
        sokoban,
        "pocket,grpo",
        {
            "rollout__context": "last_k",
            "rollout__context_turns": 2,
            "model__dtype": "bfloat16",
        },
    ),
    "one turn": (bandit, "pocket,grpo", {}),
}


def estimated_config(case):
    task, preset, changes = ESTIMATED[case]
    # Large enough that the parts of the formula decide.
    changes = {"rollout__num_groups": 8, "rollout__group_size": 16} | changes
    config = task.get_config(preset)
    changes["learner__minibatch_rows"] = 32
    config.update_from_flattened_dict(commands.dotted(changes))
    return config


@functools.cache
def counted(case):
    config = estimated_config(case)
    return plan_of(config, known=None, compiled=True, on_cpu=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", ESTIMATED)
def test_an_estimate_is_within_a_quarter_of_the_compiled_program(case):
    estimate = plan_of(estimated_config(case), known=None, on_cpu=True).memory
    count = counted(case).memory
    for name in PROGRAMS:
        for part in ("arguments", "outputs", "temporaries", "aliased", "peak"):
            size = getattr(count[name], part)
            difference = abs(getattr(estimate[name], part) - size)
            assert difference <= 0.25 * size + 50_000, (name, part)


@pytest.mark.slow
def test_programs_are_the_ones_that_run():
    """XLA's count of the arguments is the state, its outputs take its place."""
    plan = counted("one turn")
    update, play = plan.memory["update"], plan.memory["rollout"]
    state = plan.floor - plan.holdings["gradients"]
    assert state <= update.arguments <= state + 2 * plan.holdings["trajectories"]
    assert state <= update.outputs <= state + 10_000
    assert state - 100 <= update.aliased <= state
    assert update.temporaries >= plan.holdings["gradients"]
    weights = plan.holdings["weights that are trained"]
    assert weights <= play.arguments <= weights + 20_000
    assert play.temporaries >= plan.holdings["KV cache of a rollout"]


def test_an_estimate_compiles_nothing(monkeypatch):
    monkeypatch.setattr(jax.stages.Lowered, "compile", None)
    config = tiny_config("pocket,ppo")
    plan = plan_of(config, known=None)
    assert plan.memory["update"].peak > plan.floor
    with pytest.raises(TypeError):
        plan_of(config, known=None, compiled=True)


@pytest.mark.slow
def test_an_estimate_follows_the_published_counts_for_an_h100():
    """The paper's setting, counted by `benchmarks.gpu_program` (docs/benchmarks.md)."""
    config = sokoban.get_config("qwen2.5-0.5b")
    model, tokenizer, _ = read_model(config.model.path)
    plan = make_plan(config, model, tokenizer)
    counted = {"rollout": 6.60, "evaluation": 12.21, "update": 6.67}
    for name, temporaries in counted.items():
        size = plan.memory[name].temporaries / 2**30
        assert size == pytest.approx(temporaries, rel=0.03), name
    assert plan.memory["update"].peak / 2**30 == pytest.approx(17.72, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["0.5b", "3b", "7b"])
def test_an_estimate_follows_the_published_counts_for_eight_h100s(size):
    """Of docs/scaling.md: 128 rows a GPU, 4 of them in a pass."""
    config = sokoban.get_config(f"qwen2.5-{size}")
    config.mesh.fsdp, config.rollout.num_groups = 8, 64
    config.learner.minibatch_rows, config.learner.microbatch_rows = 256, 32
    model, tokenizer, _ = read_model(config.model.path)
    plan = make_plan(config, model, tokenizer)
    counted = json.loads(SCALING.read_text())[f"qwen2.5-{size} weak 1x8"]
    for name in ("rollout", "update"):
        count = counted[f"{name}_bytes"]
        assert plan.memory[name].peak == pytest.approx(count, rel=0.05), name


def test_devices_that_split_weights_read_whole_ones():
    """With as many rows on each as on one device."""
    rows = (
        "rollout__num_groups",
        "learner__minibatch_rows",
        "learner__microbatch_rows",
    )
    one, two = (
        plan_of(
            tiny_config(
                **{key: n * size for key, size in zip(rows, (2, 4, 4), strict=True)},
                mesh__fsdp=n,
                learner__logprob_chunk_tokens=n * 64,
            ),
            known={"evaluation": GIVEN["evaluation"]},
        )
        for n in (1, 2)
    )
    more = {
        name: two.memory[name].temporaries - one.memory[name].temporaries
        for name in ("rollout", "update")
    }
    params = abstract_params(read_model("pocket")[0])
    table, layer = (
        4 * num_params(part) for part in (params["embed_tokens"], params["layers"]["0"])
    )
    assert more["rollout"] == one.holdings["gradients"]
    # Weights and gradients of a layer; of the table two gradients. Half of the sum of
    # all gradients, but of the norms', is on the other device.
    read = 3 * table + 2 * layer
    elsewhere = one.holdings["gradients"] - two.holdings["gradients"]
    assert more["update"] == read - elsewhere


EIGHT_GPUS = [name for name in sizes.SIZES if name.endswith("-8gpus")]


@pytest.mark.slow
@pytest.mark.parametrize("name", EIGHT_GPUS)
def test_a_preset_for_eight_gpus_fills_cards_of_80_gb_and_fits(name):
    """By the verdict of `launch.plan`, and without a setting of JAX's."""
    config = sokoban.get_config(name)
    model = PUBLISHED_MODELS[config.model.path]
    words = BUILT_IN["pocket_vision" if model.sees else "pocket"]
    plan = make_plan(config, model, load_tokenizer(words))
    for card in ("h100", "a100-80gb"):
        device = named_device(card)
        assert 0.5 * device.memory < plan.peak < 0.75 * device.limit
        assert not device.advice(plan.peak)


def test_logits_of_a_chunk_are_split_like_its_rows():
    """A quarter of the tokens is on each of four devices."""
    many, few = (
        plan_of(
            tiny_config(mesh__fsdp=4, learner__logprob_chunk_tokens=4 * tokens),
            known={name: GIVEN[name] for name in ("rollout", "evaluation")},
        )
        .memory["update"]
        .temporaries
        for tokens in (80, 16)
    )
    vocabulary = read_model("pocket")[0].vocab_size
    assert many - few == 3 * (80 - 16) * vocabulary * 4


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        pytest.param("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688, marks=pytest.mark.slow),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, marks=pytest.mark.slow),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        pytest.param("Qwen/Qwen3-1.7B", 1_720_574_976, marks=pytest.mark.slow),
        pytest.param("Qwen/Qwen3-4B", 4_022_468_096, marks=pytest.mark.slow),
        pytest.param("Qwen/Qwen3-8B", 8_190_735_360, marks=pytest.mark.slow),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
    ],
)
def test_published_shapes_have_the_published_size(name, number):
    assert num_params(abstract_params(PUBLISHED_MODELS[name])) == number


def test_a_hub_id_is_planned_offline():
    model, tokenizer, notes = read_model("Qwen/Qwen2.5-0.5B-Instruct")
    assert model.num_hidden_layers == 24
    assert tokenizer.folder == POCKET
    assert "published shape" in notes[0]
    assert "pocket model's tokenizer" in notes[0]
    with pytest.raises(ValueError, match="neither a folder nor a model"):
        read_model("Qwen/Qwen9-0.5B")


def test_a_folder_needs_no_weights_and_no_tokenizer(tmp_path):
    shutil.copy(POCKET / "config.json", tmp_path)
    model, tokenizer, notes = read_model(str(tmp_path))
    assert (model.hidden_size, tokenizer.folder) == (128, POCKET)
    assert "has no tokenizer" in notes[0]
    shutil.copy(POCKET / "tokenizer.json", tmp_path)
    _, tokenizer, notes = read_model(str(tmp_path))
    assert (tokenizer.folder, notes) == (tmp_path, [])


def test_devices():
    for name, (kind, mebibytes) in DEVICES.items():
        device = named_device(name)
        assert device.limit == int(mebibytes * 2**20 * USABLE[kind])
    with pytest.raises(ValueError, match="no device 'a100'; choose one of t4"):
        named_device("a100")
    here = detected_device()
    assert here.kind == "cpu"
    assert here.limit < here.memory
    card = named_device("rtx-4090")
    assert "MEM_FRACTION=0.92" in card.advice(int(0.8 * card.memory))
    for share in (0.7, 0.95):
        assert not card.advice(int(share * card.memory))
    assert not dataclasses.replace(card, kind="tpu").advice(int(0.8 * card.memory))
