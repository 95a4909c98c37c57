"""Exported folders: what the card says holds, down to its program, run as printed."""

import copy
import dataclasses
import json
import re
import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sokoban
from configs.base import get_config as get_defaults
from ragen_jax.evaluation.export.model_card import model_card
from ragen_jax.evaluation.load import open_trained
from ragen_jax.models.hf.digests import find_damage
from ragen_jax.models.hf.files import model_files
from ragen_jax.program.build import POCKET, build_program
from ragen_jax.runs import reader
from ragen_jax.text.messages import parse_text
from tests import commands
from tests.reference import tokenizers

SCORES = {
    "success": 0.25,
    "success_low": 0.1,
    "success_high": 0.5,
    "ceiling": 0.75,
    "num_prompts": 8.0,
    "num_samples": 2.0,
    "temperature": 0.5,
    "held_out": 1.0,
}
OTHER_TOKENS = "in training each cell of a board was tokenized alone"


def make_run(workdir, **changes):
    """A run folder with a checkpoint of the untrained pocket model."""
    settings = {"rollout__max_turns": 3, "rollout__max_reply_tokens": 24} | changes
    config = commands.tiny_config(sokoban, **settings)
    with commands.open_run(config, workdir, build_program(config)) as run:
        run.save(2, run.state)
        run.finish()
    lines = [{"iteration": 1}, {"iteration": 2}]
    for line, success in zip(lines, (0.9, SCORES["success"]), strict=True):
        scores = SCORES | {"success": success}
        line |= {f"val-env/Sokoban/{name}": value for name, value in scores.items()}
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text)
    return workdir


def export(run, output, *words):
    flags = (f"--run={run}", f"--output={output}", *words)
    done = commands.call(commands.command("export", *flags))
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "gentle")


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    return export(run, tmp_path_factory.mktemp("exported") / "policy")


@pytest.fixture(scope="module")
def trained(run):
    return open_trained(run, None)


@pytest.fixture(scope="module")
def card(exported):
    return (exported / "README.md").read_text()


def write_card(trained, base=str(POCKET)):
    return model_card(trained, get_defaults(), base=base, has_adapters_only=False)


def python_of(card):
    (program,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    return program


def messages_of(card):
    literal = re.search(r"messages = (\[.*?\n\])", python_of(card), re.DOTALL)
    return eval(literal.group(1))


def test_the_header_is_one_that_the_hub_reads(card):
    from huggingface_hub import ModelCard

    data = ModelCard(card).data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "text-generation"
    # The pocket model is not on the hub.
    assert data.base_model is None
    assert data.tags == ["ragen_jax", "reinforcement-learning", "sokoban"]


def test_the_card_has_the_facts_of_the_run_at_the_exported_iteration(card, run):
    assert "| run | `gentle` |\n| iteration | 2 |\n" in card
    assert str(run) not in card
    row = "| Sokoban | 25.0% (10.0% to 50.0%) | 75.0% | 8, held out | 16 | 0.5 |"
    assert row in card
    assert '"rollout.max_turns": 3' not in card  # a default
    assert '"rollout.group_size": 4' in card
    assert "An episode has at most 3 turns and 10 actions." in card
    assert "Actions: `Up`, `Down`, `Left`, `Right`." in card
    assert "`P` you" in card
    assert "at most 24 tokens" in card


def test_what_is_not_recorded_is_left_out_and_what_is_recorded_is_shown(
    trained, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_metrics", lambda _: [{"iteration": 2}])
        patch.setattr(reader, "read_recorded", lambda _: reader.Recorded())
        plain = write_card(trained)
    assert "## Success" not in plain
    assert "| command |" not in plain
    assert "## Success" in write_card(trained)
    machines = [
        {"from_iteration": start, "ragen_jax": "1.2", "commit": commit}
        for start, commit in ((0, "aaa"), (1, "bbb"), (2, "ccc"))
    ]
    recorded = reader.Recorded(machines, command="python -m launch.train --seed=3")
    monkeypatch.setattr(reader, "read_recorded", lambda _: recorded)
    rows = (
        "| command | `python -m launch.train --seed=3` |\n"
        "| ragen_jax version | `1.2` |\n"
        "| git commit | `bbb` |\n"
    )
    # The third machine has made iterations after the exported one.
    assert rows in write_card(trained)


def test_a_base_on_the_hub_is_named_in_the_header(trained):
    assert "base_model: owner/model\n" in write_card(trained, base="owner/model")


def test_the_example_is_of_the_runs_context(trained):
    config = copy.deepcopy(trained.config)
    with config.unlocked(), config.ignore_type():
        config.rollout.update(context="single_turn", context_turns=2)
    text = write_card(dataclasses.replace(trained, config=config))
    assert "a single user message with the last 2 turns" in text
    example = text.split("the next message `user`:")[1]
    assert example.index("Turn 1") < example.index("<think></think><answer>Up")
    assert example.index("</answer>") < example.index("Turn 2")


def test_a_host_game_reads_the_whole_answer(trained, monkeypatch):
    monkeypatch.setattr(type(trained.program.task.env), "lists_actions", False)
    text = write_card(trained)
    assert "The game reads the whole answer" in text
    assert "||" not in text[text.index("## Play a turn") :]


def test_files_have_ordinary_modes(exported):
    (exported.parent / "ordinary").write_text("")
    expected = (exported.parent / "ordinary").stat().st_mode
    for path in exported.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(expected), path.name
    (exported.parent / "folder").mkdir()
    expected = (exported.parent / "folder").stat().st_mode
    assert exported.stat().st_mode == expected


def test_the_folders_files_are_those_of_the_digests(exported):
    names = model_files(exported)
    assert "chat_template.jinja" in names
    assert find_damage(exported, names) is None


def first_level(trained):
    task = trained.program.task
    rollout = task.collect_validation(trained.params)
    return task, jax.tree.map(lambda x: np.asarray(x)[0], jax.device_get(rollout))


@pytest.mark.slow
def test_the_template_gives_the_tokens_of_the_rollout(exported, trained, card):
    """Before every reply of an episode, from its texts and from the card's message."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(exported)
    task, episode = first_level(trained)
    record = task.records(jax.tree.map(lambda x: x[None], episode))[0]
    system, user = messages_of(card)
    messages = [system]
    for turn, start in zip(record["turns"], episode.turns.reply_start, strict=False):
        content = turn["observation"].split("<|im_start|>user\n")[1].split("<|im_end|>")
        messages.append({"role": "user", "content": content[0]})
        ids = theirs.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert ids == episode.tokens[:start].tolist()
        reply = turn["reply"].removesuffix("<|im_end|>")
        messages.append({"role": "assistant", "content": reply})
    assert len(record["turns"]) > 1
    assert messages[1] == user


def test_the_cards_message_has_the_tokens_of_the_dialogue(exported, trained, card):
    from transformers import AutoTokenizer

    messages = messages_of(card)
    assert [message["role"] for message in messages] == ["system", "user"]
    theirs = AutoTokenizer.from_pretrained(exported).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    dialogue = trained.program.task.dialogue
    opening = dialogue.prompts.opening
    text = trained.program.task.tokenizer.decode(theirs)
    ((board),) = opening.read_boards(text)
    symbols = next(p for p in opening.parts if hasattr(p, "symbols")).symbols
    fields = {
        "turn": 1,
        "actions_left": 10,
        "board": jnp.array([[symbols.index(cell) for cell in row] for row in board]),
    }
    span = dialogue.opening.tokens(fields)
    assert theirs == np.asarray(span.tokens)[: int(span.length)].tolist()
    assert OTHER_TOKENS not in card


@pytest.mark.slow
@pytest.mark.parametrize("tokenization", ["rows", "symbols"])
def test_a_model_of_qwens_format_without_thoughts(tokenization, tmp_path):
    from transformers import AutoTokenizer

    # Half boards are tokens of this tokenizer.
    model = tokenizers.train_qwen_style(tmp_path / "model", stop_tokens=["<|im_end|>"])
    commands.tiny_model(tmp_path / "random", vocab_size=700)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "random" / name, model)
    changes = {"prompt__style": "full", "prompt__thinking": False}
    run = make_run(
        tmp_path / "run",
        model__path=str(model),
        prompt__tokenization=tokenization,
        rollout__stop_at_answer=tokenization == "rows",
        **changes,
    )
    output = export(run, tmp_path / "exported")
    card = (output / "README.md").read_text()
    task = open_trained(run, None).program.task
    messages = messages_of(card)
    theirs = AutoTokenizer.from_pretrained(output)
    text = theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<answer>")
    assert task.tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert (OTHER_TOKENS in card) == (tokenization == "symbols")
    assert 're.search(r"(.*?)</answer>"' in python_of(card)
    assert "`<answer>` and the reply hold `<answer>...</answer>`" in card
    ends_there = "In training a reply ended with its first `</answer>`" in card
    stops_there = '"stop_strings": ["</answer>"]' in python_of(card)
    assert ends_there == stops_there == (tokenization == "rows")


def test_the_exported_folder_is_a_model_to_start_from(exported, trained):
    config = sokoban.get_config()
    config.update_from_flattened_dict(commands.TINY | {"model.path": str(exported)})
    program = build_program(config)
    assert program.identity == trained.program.identity
    for ours, theirs in zip(
        commands.leaves_of(program.state.params),
        commands.leaves_of(trained.params),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def run_program(card, folder, monkeypatch):
    """The variables of the card's program, run in the exported folder."""
    monkeypatch.chdir(folder)
    variables = {}
    exec(python_of(card), variables)
    return variables


def check_turn(variables, task):
    """Both readings of the reply name the same legal actions."""
    reply = variables["reply"]["content"]
    assert not reply.startswith("<think>")
    vocabulary = task.env.action_vocabulary
    most = task.rules.budget.max_actions_per_turn
    parsed = parse_text(reply, vocabulary, max_actions=most, thinking=True)
    assert parsed.has_format
    assert parsed.num_names > 0
    names = [vocabulary[i] for i in parsed.names[: parsed.num_names]]
    assert variables["actions"] == names


@pytest.mark.live
@pytest.mark.slow
def test_the_cards_program_plays_a_legal_turn(exported, trained, card, monkeypatch):
    commands.need("torch")
    check_turn(run_program(card, exported, monkeypatch), trained.program.task)


@pytest.mark.live
@pytest.mark.slow
def test_so_does_the_program_of_adapters(trained, tmp_path, monkeypatch):
    commands.need("torch", "peft")
    run = make_run(tmp_path / "lora", lora__rank=2)
    output = export(run, tmp_path / "adapters", "--adapters")
    card = (output / "README.md").read_text()
    assert "library_name: peft" in card
    check_turn(run_program(card, output, monkeypatch), trained.program.task)
