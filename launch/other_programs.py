"""Flags and keys of other programs: what stands for them here.

In: a name that a command does not have, and the keys of its configuration. Out: a
sentence with the flag that does it. Does not parse the command line.
"""

import re
from collections.abc import Sequence

from absl import flags

from ragen_jax.registry.functions import did_you_mean
from ragen_jax.registry.settings import spell_out

# Flags of other programs that choose devices.
_DEVICE_FLAGS = re.compile(
    r"(num_|n_)?(gpus?|devices?|cuda|accelerators?|tpus?)(_per_node)?|deepspeed|nnodes"
    r"|local_rank"
)
# Flag of another program -> flag or key here -> how to write it. A refusal names only
# those that the command has.
_OTHER_NAMES = {
    r"critic[_.](optim\.)?(lr|learning_rate)": {
        "critic.learning_rate": "--config.critic.learning_rate"
    },
    r"(policy_|actor_)?(lr|learning_rate)": {
        "optimizer.learning_rate": "--config.optimizer.learning_rate"
    },
    r"(max_)?(new_|completion_|response_|reply_)?(tokens|length)": {
        "rollout.max_reply_tokens": "--config.rollout.max_reply_tokens",
        "max_reply_tokens": "--config.max_reply_tokens",
    },
    r"num_generations|num_return_sequences|n_samples_per_prompt|rollout(_|\.)n": {
        "rollout.group_size": "--config.rollout.group_size"
    },
    r"warmup(_steps|_ratio)?": {
        "schedule.warmup_updates": "--config.schedule.warmup_updates"
    },
    r"adv(antage)?_estimator|advantage": {"algo.advantage": "--config.algo.advantage"},
    r"(num_)?(train_|ppo_)?epochs": {
        "learner.epochs": "--config.learner.epochs (passes over a batch) or "
        "--config.train.num_iterations"
    },
    r"beta|(init_)?kl_(coeff?|weight)": {"kl.coeff": "--config.kl.coeff"},
    r"bf16|fp16|torch_dtype|dtype|precision": {
        "model.dtype": "--config.model.dtype=bfloat16 (or float32)"
    },
    r"wandb|use_wandb|report_to|logger|trackers?": {
        "logging.sinks": "--config.logging.sinks"
    },
    r"policy": {"player": "--player=policy"},
    r"seed": {"seeds": "--seeds=0,1,2", "seed": "--config.seed"},
    r"(\w+_)?batch_size": {
        "rollout.num_groups": "--config.rollout.num_groups and .group_size (episodes "
        "of an iteration) or --config.learner.minibatch_rows (of an optimizer step)",
        "games.sokoban.episodes": "--config.games.GAME.episodes (of an optimizer step)",
    },
    r"(out|output|save|log|logging)_?(dir|folder)|out": {"workdir": "--workdir"},
    r"workdir|run(_?(dir|folder))?": {
        "workdir": "--workdir",
        "run": "--run",
        # The report's, which takes no such flag.
        "max_episodes": "the folders without a flag, as in launch.report runs/NAME",
    },
    r"model(_name|_path|_id)?(_or_path)?": {"model.path": "--config.model.path"},
    r"env(_name|_id)?|game|task": {
        "env.name": "--config.env.name",
        "games.sokoban.name": "games as presets, as in --config=configs/sft.py:sokoban",
    },
    r"(max_|num_|total_)?(train_)?(steps|iterations|iters)": {
        "train.num_iterations": "--config.train.num_iterations",
        "train.num_steps": "--config.train.num_steps",
    },
}


def unknown_flag(typed: str, known_keys: Sequence[str]) -> str:
    """What stands for a flag of another program."""
    name = typed.replace("-", "_")
    if _DEVICE_FLAGS.fullmatch(name):
        split = (
            ", and --config.mesh.data=N or --config.mesh.fsdp=N splits the work over "
            "N devices"
        )
        return (
            f"no flag --{typed}: JAX uses every device that it sees; the environment "
            "variable CUDA_VISIBLE_DEVICES=0 chooses GPUs, JAX_PLATFORMS=cpu the "
            f"processor{split if 'mesh.data' in known_keys else ''}"
        )
    own = own_flags()
    if name in own:
        return f"no flag --{typed}. Write --{name}."
    known = (*own, *known_keys)
    for names, ways in _OTHER_NAMES.items():
        for here, way in ways.items():
            if here in known and re.fullmatch(names, name):
                return f"no flag --{typed}. Write {way}."
    ending = f".{spell_out(name)}"
    keys = [key for key in known_keys if f".{key}".endswith(ending)]
    options = " or ".join(f"--config.{key}" for key in keys)
    hint = f" Write {options}." if keys else did_you_mean(name, known)
    close = re.search("'(.*)'", hint)
    if close and close[1] not in flags.FLAGS:
        hint = hint.replace(close[1], f"--config.{close[1]}")
    return f"no flag --{typed}.{hint}"


def cure_of_word(name: str, known_keys: Sequence[str]) -> str:
    """What stands for a key of another program's, as a sentence or two.

    Its sections may have other names than here, as in `actor.optim.lr`.
    """
    sections = name.split(".")
    for i in range(len(sections)):
        typed = ".".join(sections[i:])
        said = unknown_flag(typed, known_keys).removeprefix(f"no flag --{typed}")
        if cure := said.lstrip(".: "):
            return f". {cure}"
    return ""


def own_flags() -> list[str]:
    """Flags of the command; absl's own, such as those of its log, do nothing here."""
    modules = flags.FLAGS.flags_by_module_dict()
    absls = {
        flag.name
        for module, defined in modules.items()
        if module in ("absl.app", "absl.logging")
        for flag in defined
    }
    return [name for name in flags.FLAGS if name not in absls]
