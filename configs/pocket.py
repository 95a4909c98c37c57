"""The pocket model: made from nothing, on demonstrations of all three games.

    python -m launch.sft --config=configs/pocket.py --workdir=runs/pocket

Time: about 15 minutes on 2 CPU cores (800 steps). Expected: held-out success of about
24 % on Sokoban, 33 % on FrozenLake and 40 % on Bandit, with 10 to 20 % of the episodes
thinking; `ragen_jax/pocket/README.md` has the scores of the shipped model, which this
command made. Writes a Hugging Face folder, `runs/pocket/model`.
"""

from ml_collections import ConfigDict

from configs import bandit, base, frozen_lake, sokoban
from ragen_jax.registry.settings import (
    Settings,
    count,
    number,
    section,
    text,
)


def get_config() -> ConfigDict:
    """Model, games, demonstrators and schedule."""
    config = (SETTINGS | NEW_MODEL).make_config()
    config.games.sokoban = game(sokoban.get_config(), episodes=22)
    config.games.frozen_lake = game(frozen_lake.get_config(), episodes=10)
    # The solver plans a turn as if the ice were not slippery.
    config.games.frozen_lake.planning_params = {"success_rate": 1.0}
    # Both sets of names, so that the model knows every word. Arms are chosen at random:
    # the demonstrations teach which name sounds risky, not that risk pays.
    config.games.bandit = game(bandit.get_config(), episodes=2)
    config.games.bandit.noise = 1.0
    config.games.bandit_test = game(bandit.get_config(), episodes=2)
    config.games.bandit_test.kwargs = {"split": "test"}
    config.games.bandit_test.noise = 1.0
    demonstrators = config.demonstrators
    demonstrators.solver = demonstrator("reading", 0.0, share=0.25, first=0.88)
    demonstrators.guesser = demonstrator("none", 0.9, share=0.61, first=0.06)
    demonstrators.skimmer = demonstrator("shallow", 0.7, share=0.09, first=0.04)
    demonstrators.pretender = demonstrator("misreading", 0.9, share=0.05, first=0.02)
    return config


def game(task: ConfigDict, *, episodes: int) -> ConfigDict:
    """A game with the rules of its task file, `episodes` of it per step."""
    game = GAME.make_config()
    game.update(name=task.env.name, host=task.env.host, episodes=episodes)
    game.kwargs, game.params = task.env.kwargs.to_dict(), task.env.params.to_dict()
    for name in ("turns", "actions_per_turn", "actions_per_episode"):
        game[f"max_{name}"] = task.rollout[f"max_{name}"]
    game.context, game.context_turns = task.rollout.context, task.rollout.context_turns
    return game


def demonstrator(
    thought: str, noise: float, *, share: float, first: float
) -> ConfigDict:
    """A style of thought, a chance of random actions, and shares of the episodes."""
    demonstrator = DEMONSTRATOR.make_config()
    demonstrator.update(thought=thought, noise=noise, share=share, first_share=first)
    return demonstrator


# fmt: off
SETTINGS = Settings({
    **base.SETTINGS.only("seed", "prompt"),
    **base.SETTINGS.changed("rollout.max_reply_tokens", "max_reply_tokens"),
    "model": section("The network"),
    "games": section("Games that are demonstrated, each with the keys of a game"),
    **base.SETTINGS.only("host"),
    "demonstrators": section("Players of the demonstrations (docs/finetuning.md)"),

    "mixture": section("Who plays which turn"),
    "mixture.redraw": number(0.15,
        "Chance, per turn after the first, that a newly drawn demonstrator takes over.",
        least=0, most=1),
    "mixture.first_part": number(0.6,
        "Share of the steps, from the first, in which demonstrators play by "
        "`first_share`, to teach how to play; in the others they play by `share`, to "
        "make the model mediocre.", least=0, most=1),
    "mixture.discount": number(0.95,
        "Discount of the solver: below 1 it prefers short paths where actions are "
        "free.", above=0, most=1),

    "optimizer": section("AdamW with linear warm-up and a cosine at the end"),
    "optimizer.learning_rate": number(2e-3, "Highest learning rate.", above=0),
    "optimizer.warmup_steps": number(50,
        "Steps in which the learning rate rises from 0.", least=0),
    "optimizer.final_fraction": number(0.05,
        "Share of the learning rate that is left at the last step, after a cosine.",
        least=0, most=1),
    # Fine-tuning compiles them in.
    **base.SETTINGS.changed("optimizer.beta1", is_data=False),
    **base.SETTINGS.changed("optimizer.beta2", default=0.98, is_data=False),
    **base.SETTINGS.changed("optimizer.weight_decay", is_data=False),
    **base.SETTINGS.changed("optimizer.max_grad_norm", is_data=False,
        meaning="Bound on the global norm of the gradient."),

    "train": section("Steps, batches and checkpoints"),
    "train.num_steps": count(800,
        "Optimizer steps.", none="as many as `train.num_epochs` take"),
    "train.num_epochs": count(None,
        "Passes over the data sets.", none="`train.num_steps` decides"),
    "train.microbatch_episodes": count(6,
        "Episodes of a forward and backward pass, after sorting them by length.",
        is_mutable=True),
    "train.num_widths": count(5,
        "Number of widths to compile for these passes; each runs at the shortest that "
        "holds its episodes.",
        is_mutable=True),
    "train.logprob_chunk_tokens": count(None,
        "Tokens whose logits exist at a time; the backward pass computes them again.",
        none="all of a microbatch at once, faster for a small vocabulary",
        is_mutable=True),
    "train.prompt_loss_weight": number(0.0,
        "Weight in the loss of the tokens outside replies; a reply token has 1. Above "
        "0 messages are learned, too, which teaches a new model to copy names.",
        least=0, most=1),
    "train.log_every": count(
        20, "Steps between lines on the console.", is_mutable=True),
    "train.checkpoint_every": count(
        50, "Steps between checkpoints.", is_mutable=True),

    "evaluation": section(
        "Validation prompts, played after training", is_mutable=True),
    **base.SETTINGS.only("evaluation.num_prompts"),
    **base.SETTINGS.changed("rollout.max_reply_tokens", "evaluation.max_reply_tokens"),
    **base.SETTINGS.only("evaluation.temperature", "evaluation.seed"),
})

# A model that is made from nothing: a small Qwen-2.5, whose keys are those of its
# config.json. The vocabulary is the tokenizer's; the output head is tied to the
# embedding.
NEW_MODEL = Settings({
    "model.hidden_size": count(128, "Width of the network."),
    "model.intermediate_size": count(384, "Inner units of an MLP."),
    "model.num_hidden_layers": count(4, "Layers of the network."),
    "model.num_attention_heads": count(4, "Heads of the queries."),
    "model.num_key_value_heads": count(2, "Heads of the keys and values."),
    "model.rope_theta": number(10_000.0, "Base of the rotary frequencies.", above=0),
    "model.max_position_embeddings": count(2048, "Longest sequence, in tokens."),
    "model.initializer_range": number(0.06,
        "Standard deviation of the first weights.", above=0),
    "model.vision_layers": count(None,
        "Layers of a vision tower: the model is a small Qwen2.5-VL.",
        none="the model reads text alone"),
    "model.vision_hidden_size": count(64,
        "Width of the tower.", needs="model.vision_layers is not None"),
    "model.vision_num_heads": count(4,
        "Heads of its attention.", needs="model.vision_layers is not None"),
    "model.vision_patch_size": count(8,
        "Pixels along a side of a patch; a cell of a board is 2x2 patches.",
        needs="model.vision_layers is not None"),
})

# A model that is loaded, with adapters or without.
LOADED_MODEL = base.SETTINGS.only("model", "lora")

# Keys of an entry of `games`.
GAME = Settings({
    "name": text("sokoban", "Name of the array game in `envs/__init__.py`."),
    "host": text(None,
        "Host game in place of the array game (see `env.host` of "
        "configs/base.py). Its episodes are played before the first step, and "
        "demonstrators write no thoughts.", none="an array game"),
    "kwargs": section("Constructor arguments of the game.", is_open=True),
    "episodes": count(1, "Episodes of the game per step."),
    "num_demonstrations": count(None,
        "Episodes of the data set of the game.", none="every step plays new episodes"),
    "max_turns": count(3, "Replies of an episode."),
    "max_actions_per_turn": count(4, "Actions run from one reply."),
    "max_actions_per_episode": count(10, "Actions run in one episode."),
    "context": text("full",
        "Part of the dialogue that a player sees (see `rollout.context` of "
        'configs/base.py). With any but "full", every turn is a row of the batch, with '
        "its prompt.", one_of="ragen_jax.text.context:CONTEXTS"),
    "context_turns": count(None,
        "Turns in the window that a player sees.", none='with "full"'),
    "params": section(
        "Numbers of the game's `EnvParams` that differ from its defaults.",
        is_open=True),
    "planning_params": section(
        "Further numbers of `EnvParams`, which the demonstrators alone plan with.",
        is_open=True),
    "noise": number(None,
        "Chance of a random action in this game, in place of the demonstrators' "
        "`noise`.", none="theirs", least=0, most=1),
})

# Keys of an entry of `demonstrators`.
DEMONSTRATOR = Settings({
    "thought": text("none",
        "What the thought of the demonstrator says.",
        one_of="ragen_jax.rollout.demonstrators:THOUGHTS"),
    "noise": number(0.0,
        "Chance that an action is random instead of the solver's.", least=0, most=1),
    "share": number(1.0,
        "Share of the episodes that the demonstrator plays after the first part.",
        least=0, most=1),
    "first_share": number(1.0,
        "Share of the episodes that the demonstrator plays in the first part of the "
        "steps.", least=0, most=1),
})
# fmt: on
