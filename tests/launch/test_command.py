"""The command line of a configuration: what is read, and which word wins."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from configs import base, sft
from ragen_jax.registry.settings import flatten
from ragen_jax.sft import rules
from tests import commands

PROBE = """
import json, sys
from launch import command
holder = command.define_config()
def main(argv):
    config = command.read_config(holder, argv)
    assert config.is_locked
    keys = command.overridden_keys(argv)
    print(json.dumps({"config": config.to_dict(), "keys": keys}))
    return 0
command.run(main)
"""


def read(*words, file="configs/sokoban.py") -> subprocess.CompletedProcess:
    start = [sys.executable, "-c", PROBE, f"--config={file}"]
    return commands.run([*start, *words])


def test_the_last_word_about_a_key_wins():
    done = read(
        "--config.rollout.top_k=None",
        "--config.rollout.top_k=5",
        "--config.rollout.top_p=0.5",
        "--config.rollout.top_p=None",
        "--config.env.kwargs={'num_boxes': 3, 'rows': 8}",
        "--config.env.kwargs.num_boxes=2",
        "--config.env.params.slip=0.5",
        "--config.env.params={'other': True}",
        "--config.filter.loss_scale=linear",
        "--config.filter.loss_scale=none",
    )
    assert done.returncode == 0, done.stderr
    read_here = json.loads(done.stdout)
    assert read_here["config"]["rollout"]["top_k"] == 5
    assert read_here["config"]["rollout"]["top_p"] is None
    assert read_here["config"]["env"]["kwargs"] == {"num_boxes": 2, "rows": 8}
    assert read_here["config"]["env"]["params"] == {"other": True}
    # A name, not the absence of a value.
    assert read_here["config"]["filter"]["loss_scale"] == "none"
    assert "env.kwargs.num_boxes" in read_here["keys"]


REFUSED = [
    (["--config.critic.lr=1"], "Did you mean 'critic.learning_rate'?"),
    (["--config.optimizer.lr=1"], "Did you mean 'optimizer.learning_rate'?"),
    (["--gpus=8"], "JAX uses every device that it sees"),
    (["--device=cuda"], "CUDA_VISIBLE_DEVICES"),
    (
        ["--learning_rate=1e-4"],
        "no flag --learning_rate. Write --config.optimizer.learning_rate.",
    ),
    (["--lr=1e-4"], "no flag --lr. Write --config.optimizer.learning_rate."),
    (["--learning-rate=1"], "no flag --learning-rate. Write --config.optimizer.learn"),
    (["--critic_lr=1e-4"], "Write --config.critic.learning_rate."),
    (["--output-dir=x"], "no flag --output-dir. Write --workdir."),
    (["--max_new_tokens=5"], "Write --config.rollout.max_reply_tokens."),
    (["--num_generations=5"], "Write --config.rollout.group_size."),
    (["--warmup_steps=5"], "Write --config.schedule.warmup_updates."),
    (["--adv_estimator=grpo"], "Write --config.algo.advantage."),
    (["--num_train_epochs=5"], "Write --config.learner.epochs"),
    (["--report_to=wandb"], "Write --config.logging.sinks."),
    (["--n_gpus_per_node=8"], "JAX uses every device that it sees"),
    # absl's own, which does nothing here.
    (["--log_dir=x"], "no flag --log_dir. Write --workdir."),
    (["--verbosity=1"], "no flag --verbosity."),
    (["critic.lr=1e-4"], "are written --config.critic.learning_rate=1e-4"),
    (["actor_rollout_ref.actor.optim.lr=1"], "Write --config.optimizer.learning_rate."),
    (["trainer.n_gpus_per_node=8"], "JAX uses every device that it sees"),
    (
        ["--config.train.learning_rate=1"],
        "Did you mean 'optimizer.learning_rate' or 'critic.learning_rate'?",
    ),
    (["--config.env.num_boxes=2"], "An argument of the game is env.kwargs.NAME."),
    (["--num_iterations=5"], "Write --config.train.num_iterations."),
    (["--max_steps=5"], "Write --config.train.num_iterations."),
    (["--batch_size=5"], "or --config.learner.minibatch_rows"),
    (["--output_dir=x"], "no flag --output_dir. Write --workdir."),
    (["--model_name_or_path=x"], "Write --config.model.path."),
    (["--game=x"], "Write --config.env.name."),
    (["--trian.num_iterations=3"], "Did you mean '--config.train.num_iterations'?"),
    (["--config=configs"], "--config=configs is a folder; name a configuration file"),
    (["--config="], "--config= names no file; add"),
    (["--config", "--seed=1"], "--config has no value; write --config=configs"),
    (["sokoban:grpo"], "options are written --config=sokoban:grpo"),
    (["configs/bandit.py"], "options are written --config=configs/bandit.py"),
    (["--workdri=x"], "no flag --workdri. Did you mean 'workdir'?"),
    (
        ["train.num_iterations=5"],
        "options are written --config.train.num_iterations=5",
    ),
    (["--config.rollout.top_q=None"], "Did you mean 'rollout.top_p'?"),
    (["--config.algo.gama=1"], "key 'algo.gama'. Did you mean 'algo.gamma'?"),
    (["--config.seed=x"], "--config.seed=x; it must be a whole number"),
    (["--config.algo.lam=x"], "--config.algo.lam=x; it must be a number"),
    (["--config.algo.zero_task=x"], "it must be True or False"),
    (["--config.algo=3"], "this is a section; set its keys one by one"),
    (["--config.seed=None"], "seed may not be None; give it a value"),
    (["--config.algo.advantage=grpp"], "Did you mean 'grpo'?"),
    (["--config=configs/sokoban.py:gppo"], "Did you mean 'ppo'?"),
    (["--config=configs/base.py:ppo"], "takes no presets"),
    (
        ["--config.env.kwargs.num_boxes", "2"],
        "write --config.env.kwargs.num_boxes=VALUE",
    ),
    (["--config.rollout.num_groups"], "--config.rollout.num_groups=VALUE"),
    (["--config.iterations=5"], "Did you mean 'train.num_iterations'?"),
    (["--config.algo.power"], "write --config.algo.power=VALUE"),
    (["--config=sokobn"], "configuration file sokobn. Did you mean 'sokoban'?"),
    (["--config.rollout.num_group=3"], "Did you mean 'rollout.num_groups'?"),
    (["--config.rollout.num_groups=many"], "--config.rollout.num_groups=many; it must"),
    (["--config.prompt.length_hint_words=5"], "has no effect"),
    (["--config.env.params.step_reward=text"], "step_reward = 'text'; it must be a"),
    (["--config.env.params.step_reward=1e999"], "step_reward = inf; it must be a fin"),
    (["--config.env.params.box_reward=(1, 2)"], "box_reward = (1, 2); it must be a f"),
    (
        ["--config.env.params.max_steps_in_episode=100000000000000"],
        "whole number of 32 bits",
    ),
    (
        ["--config.env.mix=(('sokoban', 'many'), ('bandit', 1))"],
        "a whole number of groups",
    ),
    (
        [
            "--config.env.mix=(('bandit', 16), "
            "('sokoban', 16, {'params': {'box_reward': 'x'}}))"
        ],
        "box_reward = 'x'; it must be a finite number",
    ),
    (
        ["--config.env.mix=(('sokoban', 100000000000000), ('bandit', 1))"],
        "groups in all, but",
    ),
    (["--config.learner.epochs=1000000000000"], "learner.epochs = 1000000000000"),
    (["--config.rollout.num_groups=3000000"], "episodes at a time need at least"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_refusals(words, message, tmp_path):
    start = "--config=configs/sokoban.py", f"--workdir={tmp_path / 'run'}"
    assert message in commands.refusal("train", *start, *words)
    assert not (tmp_path / "run").exists()


def test_the_refusal_names_the_flag_of_this_command(tmp_path):
    """A seed is a key of one run and a flag of a sweep; a run's folder is a flag."""
    seed = "--config=configs/sokoban.py", "--seed=0"
    assert commands.refusal("train", *seed).endswith("Write --config.seed.")
    assert commands.refusal("sweep", *seed).endswith("Write --seeds=0,1,2.")
    seeds = "--config=configs/sokoban.py", "--config.seed=0,1"
    assert commands.refusal("sweep", *seeds).endswith("; several: --seeds=0,1")
    rates = "--config=configs/sokoban.py", "--config.algo.lam=0.9,1"
    several = 'it must be a number; several: --set "algo.lam=0.9,1"'
    assert commands.refusal("sweep", *rates).endswith(several)
    assert commands.refusal("train", *rates).endswith("it must be a number")
    for command in "evaluate", "export":
        said = commands.refusal(command, str(tmp_path))
        assert said.endswith(f"options are written --run={tmp_path}")


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "--config=sokoban", "--{}={}"],
        ["play", "--config=sokoban", "--gif={}"],
        ["report", "runs/x", "--output={}"],
        ["leaderboard", "runs/x", "--table={}"],
    ],
)
def test_files_that_cannot_be_written_are_refused_before_any_work(words, tmp_path):
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").touch()
    module, *others, last = words
    for flag in ("output", "table", "json") if module == "evaluate" else [""]:
        for name, said in (
            ("folder.gif", "folder.gif is a folder; name a file in it"),
            ("file/a/b.gif", f"{tmp_path}/file is a file, not a folder"),
        ):
            values = [flag] * bool(flag) + [tmp_path / name]
            assert said in commands.refusal(module, *others, last.format(*values))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--config", "nosuch"], "there is no configuration file nosuch."),
        (["train", "--config", "sokoban", "--config.seed=x"], "seed"),
        (
            ["train", "--config=sokoban", "--config.optimizer={'learning_rate': 1}"],
            "--config.optimizer: this is a section; set its keys one by one",
        ),
        (
            ["sft", "--config=sft:sokoban,pocket", "--config.logging.every=5"],
            "no configuration key 'logging.every'",
        ),
        (
            ["train", "--config=sokoban", "--config.env.kwargs={3: 3}"],
            "env.kwargs.3 is no key: names of keys are texts",
        ),
        (
            ["train", "--config=sokoban", "--config.env.kwargs.symbols={'W', 'P'}"],
            "which config.json can hold",
        ),
        (
            ["train", "--config=sokoban", "--config.env.kwargs.symbols={[1]: 2}"],
            "symbols",
        ),
        (
            ["evaluate", "--config=sokoban", "--suite=sokoban", "--player=solver",
             "--config.env.kwargs.num_boxes=2"],
            "--config.env.kwargs.num_boxes has no effect with --suite=sokoban",
        ),
        (["play", "--config=sokoban", "--level=4294967296"], "use a number from 0 to"),
        (["check", "os:sep"], "os:sep is str, neither class nor function"),
    ],
)  # fmt: skip
def test_odd_words_are_one_sentence(words, said, tmp_path):
    module, *others = words
    if module in ("train", "sft"):
        others.append(f"--workdir={tmp_path / 'run'}")
    assert said in commands.refusal(module, *others)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "flags"),
    [("evaluate", ("output", "json")), ("evaluate", ("table", "json"))],
)
def test_two_flags_do_not_write_one_file(module, flags, tmp_path):
    names = (tmp_path / "a.md", tmp_path / "b" / ".." / "a.md")
    words = [f"--{flag}={name}" for flag, name in zip(flags, names, strict=True)]
    said = commands.refusal(module, *words)
    assert f"a.md is also the file of --{flags[0]}; name another file" in said


@pytest.mark.parametrize(
    ("module", "word", "cure"),
    [
        ("fetch", "--model=x", ""),
        ("report", "--model=x", ""),
        ("export", "--model=x", ""),
        ("export", "--num_iterations=5", ""),
        ("export", "--lr=1e-4", ""),
        ("report", "--config.model.path=x", ""),
        ("report", "--gpus=2", ""),
        ("export", "configs/sokoban.py", ""),
        ("sft", "--max_steps=5", "Write --config.train.num_steps."),
        ("sft", "--batch_size=5", "Write --config.games.GAME.episodes (of an"),
        ("sft", "--game=x", "Write games as presets, as in --config=configs/sft.py"),
        ("report", "--run=runs/x", "without a flag, as in launch.report runs/NAME"),
        ("export", "--workdir=runs/x", "Write --run."),
        ("evaluate", "--workdir=runs/x", "Write --run."),
        ("train", "--run=runs/x", "Write --workdir."),
        ("sft", "--gpus=2", ""),
        ("sft", "--model=x", "Write --config.model.path."),
        ("sft", "--lr=1", "Write --config.optimizer.learning_rate."),
        ("sft", "train.num_steps=5", "written --config.train.num_steps=5"),
    ],
)
def test_cures_are_keys_and_flags_of_the_command(module, word, cure):
    said = commands.refusal(module, word)
    written = re.compile(r"--config(?:\.\w+)*")
    cures = set(written.findall(said)) - set(written.findall(word))
    assert cures == set(written.findall(cure))
    assert cure in said


def test_keys_beside_a_run_need_a_file():
    word = "--config.rollout.top_k=3"
    assert "and none is given; add --config=FILE" in commands.refusal("play", word)
    said = commands.refusal("play", "--run=runs/x", word)
    assert "with --run alone it is the run's own; add --config=FILE" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Written beside the file, then renamed.
        (["evaluate", "--config=sokoban", "--table={}/there"], "/closed may not be"),
        (["evaluate", "--config=sokoban", "--json={}/there"], "/closed may not be"),
        (["leaderboard", "runs/x", "--output={}/there"], "/closed may not be"),
        (["report", "runs/x", "--output={}/there"], "/closed may not be"),
        (["report", "runs/x", "--png={}/figures"], "/closed may not be"),
        (["report", "runs/x", "--png={}/there"], "there is a file; name a folder"),
        (["report", "runs/x", "--png={}/there/a"], "there is a file, not a folder"),
        # Written into the file itself.
        (["play", "--run=runs/x", "--gif={}/there.gif"], "runs/x"),
    ],
)
def test_what_is_written_is_what_has_to_be_writable(words, said, tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "there").touch()
    (closed / "there.gif").touch()
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: pathlib.Path(path) != closed)
    module, *others, last = words
    refusal = commands.refusal(module, *others, last.format(closed))
    assert said in refusal
    assert ("may not be written" in refusal) == ("may not be" in said)


def test_a_pipe_that_nobody_reads_ends_the_command_also_for_errors():
    """As `2>&1 | head` does."""
    code = (
        "from launch import command\n"
        "command.run(lambda argv: print('a line', flush=True) or 0)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=pipe,
            stderr=pipe,
            cwd=commands.ROOT,
            check=False,
        )
    assert done.returncode == 128 + signal.SIGPIPE


def test_an_override_without_a_configuration_says_what_to_add():
    said = commands.refusal("evaluate", "--config.env.name=bandit")
    assert "--config.env.name changes a configuration" in said
    assert "add --config=FILE" in said


def test_a_run_s_own_configuration_is_changed_by_flags_or_beside_its_file():
    """Another game's file would play that game with the run's policy."""
    words = ["--run=runs/x", "--config.evaluation.num_prompts=8"]
    said = commands.refusal("evaluate", *words)
    assert "write --num_prompts=VALUE, or add --config=FILE, the file" in said
    assert "sokoban" not in said


def test_a_command_names_a_configuration_of_its_kind():
    assert "--config=configs/sft.py:sokoban,pocket" in commands.refusal("sft")


@pytest.mark.parametrize("module", ["train", "evaluate", "serve"])
def test_a_configuration_for_fine_tuning_is_no_other_command_s(module, tmp_path):
    folder = f"--workdir={tmp_path / 'run'}"
    words = {"train": [folder], "evaluate": ["--player=solver"], "serve": []}[module]
    said = commands.refusal(module, "--config=sft:pocket", *words)
    assert "this is not a training configuration" in said


@pytest.mark.parametrize("module", ["evaluate", "play", "export"])
def test_a_run_that_is_not_there_is_named(module, tmp_path):
    words = [f"--run={tmp_path / 'nothing'}"]
    if module == "export":
        words.append(f"--output={tmp_path / 'out'}")
    said = commands.refusal(module, *words)
    assert "there is no folder" in said
    assert "launch.train" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"hello world", "is not valid Python (invalid syntax)"),
        (b"\x00\xff\x80", "is not valid Python"),
        (b'{"seed": 1}', "defines no get_config()"),
        (b"def get_config():\n    return 3", "returns int, not a ConfigDict"),
        (b"def get_config():\n    return x", "line 2: NameError: name 'x' is not"),
        (b"import nothing_of_the_kind as get_config", "line 1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_is_no_configuration(text, message, tmp_path):
    path = tmp_path / "settings.py"
    path.write_bytes(text)
    words = f"--config={path}", f"--workdir={tmp_path / 'run'}"
    said = commands.refusal("train", *words)
    assert message in said
    assert str(path) in said
    assert not (tmp_path / "run").exists()


HELP = {
    "train": (
        "--workdir",
        "starpo_s",
        "rollout.num_groups",
        "reinforce_plus_plus_baseline",
    ),
    "evaluate": ("--api.base_url", "--suite", "evaluation.num_prompts"),
    "play": ("--player=human|policy|solver", "--config=FILE[:PRESETS]"),
    "plan": ("--device", "qwen2.5-0.5b"),
    "sft": ("--workdir", "frozen_lake", "games.sokoban.num_demonstrations"),
    "fetch": ("smollm2-135m", "--wheel", "--output"),
    "export": ("--adapters", "--dtype=float32|bfloat16"),
    "leaderboard": ("--output", "--table"),
    "report": ("--png", "--max_episodes"),
}


@pytest.mark.parametrize(("name", "words"), HELP.items())
def test_help_has_flags_presets_and_keys(name, words):
    done = commands.call(commands.command(name, "--help"))
    assert done.returncode == 0
    for word in words:
        assert word in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_help_of_a_task_file_has_its_values_in_the_order_of_the_file():
    words = commands.command("train", "--config=configs/bandit.py:ppo", "--help")
    said = commands.call(words).stdout
    assert "with their values in configs/bandit.py:ppo\n" in said
    lines = said[said.index("with their values") :].splitlines()
    assert "  rollout.max_turns = 1" in lines
    assert "  algo.advantage = 'gae'" in lines
    names = [line.split(" = ")[0].strip() for line in lines if " = " in line]
    places = [*base.SETTINGS]
    places = [places.index(name) for name in names if name in places]
    assert places == sorted(places)
    assert "One of ." not in said


@pytest.mark.parametrize(
    ("topic", "keys", "others"),
    [
        ("rollout", ["rollout.num_groups = 16"], ["learner.epochs", "Flags"]),
        ("algo.ga", ["algo.gamma = 1.0"], ["algo.lam"]),
    ],
)
def test_help_about_a_section_shows_its_keys_alone(topic, keys, others):
    done = commands.call(commands.command("train", f"--help={topic}"))
    assert done.returncode == 0
    assert all(key in done.stdout for key in keys)
    assert not any(word in done.stdout for word in others)


@pytest.mark.parametrize(
    ("command", "words"),
    [("train", "Did you mean 'rollout'?"), ("report", "this command has no keys")],
)
def test_help_about_nothing_is_refused(command, words):
    assert words in commands.refusal(command, "--help=rolout")


@pytest.mark.parametrize("config", [base.get_config(), sft.get_config("pocket")])
def test_every_key_has_a_meaning(config):
    declared = base.SETTINGS if "algo" in config else rules.declared(config)
    assert [key for key in flatten(config) if not declared[key].meaning] == []


def test_fine_tuning_takes_games_of_the_user(tmp_path):
    """Their names are references, as are functions that have options in training."""
    game = "--config.games.game.name=nowhere:Game"
    line = commands.command("sft", "--config=configs/sft.py:game,pocket", game)
    done = commands.call([*line, f"--workdir={tmp_path / 'run'}"])
    assert done.returncode == 2
    assert "there is no module nowhere" in done.stderr


OFF = """
from configs import sokoban


def get_config():
    config = sokoban.get_config()
    config.filter.keep_fraction = None
    config.filter.rule, config.filter.top_p = "top_p", 0.9
    config.rollout.top_k = None
    config.evaluation.every = None
    config.logging.sinks = None
    return config
"""


def test_a_key_that_a_file_sets_to_none_keeps_its_type(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OFF)
    words = {
        "filter.keep_fraction": "0.5",
        "filter.rule": "top_fraction",
        "filter.top_p": "None",
        "rollout.top_k": "5",
        "evaluation.every": "7",
        "logging.sinks": "('wandb',)",
    }
    overrides = [f"--config.{key}={text}" for key, text in words.items()]
    done = read(*overrides, file=file)
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)["config"]
    assert config["filter"]["keep_fraction"] == 0.5
    assert config["rollout"]["top_k"] == 5
    assert config["evaluation"]["every"] == 7
    assert config["logging"]["sinks"] == ["wandb"]
    wrong = read("--config.filter.keep_fraction=half", file=file)
    assert "keep_fraction=half; it must be a number" in wrong.stderr


@pytest.mark.parametrize(("text", "sinks"), [("()", []), ("wandb", ["wandb"])])
def test_several_values_may_be_none_or_one(text, sinks):
    done = read(f"--config.logging.sinks={text}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["logging"]["sinks"] == sinks


def test_every_key_keeps_its_type_where_it_is_none():
    config = base.get_config()
    for key, entry in base.SETTINGS.items():
        section, _, name = key.rpartition(".")
        if key not in base.SETTINGS.keys_of_values:
            continue
        place = config[section] if section else config
        place[name] = None
        assert place.get_type(name) is entry.kind
