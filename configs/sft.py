"""Supervised fine-tuning of a checkpoint on solved episodes: the paper's SFT baseline.

    python -m launch.sft --config=configs/sft.py --workdir=runs/sft

A task and a size (`configs/sizes.py`): --config=configs/sft.py:frozen_lake,pocket
(default: sokoban, qwen2.5-0.5b). Your games are the tasks `game` and `world`, for array
and host games: --config.games.game.name=package.module:Class or
--config.games.world.host=package.module:Class (docs/warm-start.md). Wording, budget of
play and model are those of the task file with that size, so that `launch.train` can
continue from the result:
`--config=configs/sokoban.py:qwen2.5-0.5b --config.model.path=runs/sft/model`.

The word `form` (`:bandit,smollm2-135m,form`) demonstrates random actions in place of
the solver's, for 16 steps: the model learns how an answer is written and nothing
about the game, so that what it gains afterwards is reinforcement's.

Time: 40 steps; with the pocket model about a minute on 2 CPU cores, with real weights
not measured. Expected: the pocket model goes from 27 % to 30 % of held-out Sokoban
levels (`docs/finetuning.md`); the paper reports 74.6 % on Sokoban and 23 % on
FrozenLake with Qwen2.5-0.5B, which has not been reproduced. One device.

The recipe is that of arXiv 2504.20073: 1,000 episodes solved by breadth-first search,
LoRA of rank 64 and alpha 32, learning rate 1e-4, batch 128. What the paper leaves open
(epochs, warm-up, decay, thoughts of the replies) is chosen here.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import agent, bandit, frozen_lake, game, pocket, sizes, sokoban, world

TASKS = {
    "sokoban": sokoban,
    "frozen_lake": frozen_lake,
    "bandit": bandit,
    "game": game,
    "world": world,
    "agent": agent,
}


def get_config(words: str = "") -> ConfigDict:
    """Fine-tuning on episodes; `words` name the task, the size and the player."""
    chosen = {"task": "sokoban", "size": "qwen2.5-0.5b", "player": "solver"}
    name, size, player = sizes.choose(words, PRESETS, chosen).values()
    task = TASKS[name].get_config(size)
    config = pocket.get_config()

    config.prompt, config.host = task.prompt, task.host
    # Room for a demonstrated reply: with Qwen's tokenizer at most 18 tokens, or 27 with
    # the thoughts of "reading".
    config.max_reply_tokens = task.rollout.max_reply_tokens
    if TASKS[name] not in (game, world, agent):
        config.max_reply_tokens = min(32, config.max_reply_tokens)

    config.model = task.model
    # With rank None all of the model is tuned.
    config.lora = task.lora
    config.lora.rank = 64
    config.lora.alpha = 32.0

    played = pocket.game(task, episodes=128)
    played.num_demonstrations = 1000
    if name == "frozen_lake":
        # The solver plans a turn as if the ice were not slippery.
        played.planning_params = {"success_rate": 1.0}
    config.games = ConfigDict({name: played})

    # The exact solver without thoughts; "reading" states where everything is.
    solver = pocket.demonstrator("none", 0.0, share=1.0, first=1.0)
    config.demonstrators = ConfigDict({"solver": solver})
    config.mixture.redraw = 0.0
    config.mixture.first_part = 0.0

    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 4
    config.optimizer.final_fraction = 0.1
    config.optimizer.beta2 = 0.999

    config.train.num_steps = placeholder(int)
    config.train.num_epochs = 5
    config.train.microbatch_episodes = 8
    config.train.logprob_chunk_tokens = 1024
    config.train.log_every = 1
    config.train.checkpoint_every = 10

    # Before and after training; a model that is not trained yet thinks at length.
    config.evaluation.max_reply_tokens = task.rollout.max_reply_tokens

    if config.model.path == "pocket":
        _pocket(config, is_new=TASKS[name] in (game, world, agent))
    PLAYERS[player](config)
    return config


def solver(config: ConfigDict) -> None:
    """The exact solver plays, as set above."""
    del config


def form(config: ConfigDict) -> None:
    """Random actions without thoughts, 16 steps: the form of an answer alone."""
    player = pocket.demonstrator("none", 1.0, share=1.0, first=1.0)
    config.demonstrators = ConfigDict({"random": player})
    for played in config.games.values():
        played.num_demonstrations, played.episodes = 1024, 64
    config.train.num_epochs = 1
    if config.model.path != "pocket":
        # A large rate: only the form has to be learned. Tried with SmolLM2 alone.
        config.optimizer.learning_rate = 5e-4
        config.lora.rank, config.lora.alpha = 32, 32.0


def _pocket(config: ConfigDict, *, is_new: bool) -> None:
    """The built-in model: a small vocabulary, a large learning rate.

    Letters of a new game's words have to be learned, in embeddings, which have no
    adapters.
    """
    config.train.logprob_chunk_tokens = None
    config.optimizer.learning_rate = 2e-3
    if is_new:
        config.lora.rank = placeholder(int)


# Who plays the demonstrations.
PLAYERS = {"solver": solver, "form": form}

PRESETS = {"task": TASKS, "size": sizes.SIZES, "player": PLAYERS}
