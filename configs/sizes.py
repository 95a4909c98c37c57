"""Presets: the part of a configuration that depends on the model, not the task.

`--config=configs/sokoban.py:qwen2.5-0.5b` applies the entry of that name on top of the
task's own settings. One name of each kind may be given, in any order, separated by
commas: a size, a variant and an estimator (`configs/algorithms.py`), as in
`:pocket,starpo_s,grpo`.
"""

import itertools
from collections.abc import Collection, Mapping

from ml_collections import ConfigDict

from configs import algorithms
from ragen_jax.registry.functions import did_you_mean


def pocket(config: ConfigDict) -> None:
    """The built-in model of 0.8 million parameters, on a laptop.

    Four minibatches of 32 rows per iteration; 4 to 8 seconds an iteration on 2 cores.
    PPO; GRPO gains as much in 40 iterations of 60 % of the time (`docs/results.md`).
    """
    config.rollout.num_groups = 32
    config.rollout.group_size = 8
    # Its replies take 20 tokens.
    config.rollout.decode_chunk_tokens = 4
    config.algo.advantage = "gae"
    config.filter.keep_fraction = 0.5
    config.optimizer.learning_rate = 2e-4
    config.critic.learning_rate = 1e-3
    config.train.num_iterations = 40
    config.evaluation.every = 10


def pocket_vision(config: ConfigDict) -> None:
    """The built-in model that sees, of 1.1 million parameters, with boards as pictures.

    Games and budget are those of `pocket` (`docs/visual.md`).
    """
    pocket(config)
    config.model.path = "pocket_vision"
    config.prompt.observation = "image"


def study(config: ConfigDict) -> None:
    """The pocket model in runs of about a minute: the studies of docs/findings.md."""
    pocket(config)
    config.rollout.num_groups = 8
    config.rollout.max_turns = 2
    config.rollout.max_actions_per_turn = 5
    # Seven actions and a thought.
    config.rollout.max_reply_tokens = 28
    config.learner.minibatch_rows = 16
    config.optimizer.learning_rate = 1e-4
    config.train.num_iterations = 40
    config.evaluation.every = 5
    config.diagnostics.every = 10
    config.diagnostics.num_samples = 32
    # They are resumed from the start of a run, and their records are what is kept.
    config.checkpoint.every = 50
    config.checkpoint.keep = 1
    config.logging.trajectories_every = 50
    config.logging.sinks = ()


def use_built_in(config: ConfigDict, name: str) -> bool:
    """Replace the pocket model by another built-in one; False if none of them plays."""
    is_pocket = config.model.path == "pocket"
    if is_pocket:
        config.model.path = name
    return is_pocket


def play_in_python(config: ConfigDict, host: str, *, max_turns: int) -> None:
    """Play an entry of HOST_GAMES (`ragen_jax/host_games/`), a step a reply."""
    config.env.host = host
    # It writes its own text, and shows images by itself.
    config.prompt.observation = "text"
    config.rollout.max_turns = max_turns
    config.rollout.max_actions_per_turn = 1
    config.rollout.max_actions_per_episode = max_turns
    # Observations differ in length, and with them the rows.
    config.learner.num_widths = 4


def smollm2(config: ConfigDict) -> None:
    """SmolLM2-135M-Instruct, a real language model on a laptop (`launch.fetch`).

    Answers without thoughts, one reply an episode; all groups are learned from, since
    at the start hardly any has a reward spread besides that of its form. Bandit rises
    from 19 % to 89 % in 40 iterations of 20 seconds on 2 cores (`docs/results.md`).
    """
    config.prompt.style = "example"
    config.prompt.tokenization = "rows"
    config.prompt.thinking = False
    config.model.path = "models/smollm2-135m"
    # Half of the time of float32 on CPUs with instructions for it.
    config.model.dtype = "bfloat16"
    config.rollout.num_groups = 8
    config.rollout.group_size = 16
    config.rollout.max_turns = 1
    config.rollout.max_actions_per_turn = 6
    config.rollout.max_actions_per_episode = 6
    config.rollout.max_reply_tokens = 20
    config.rollout.stop_at_answer = True
    config.rollout.decode_chunk_tokens = 4
    # Each part would read all weights for every token.
    config.rollout.part_rows = None
    config.bonus.format = 0.2
    # With the division by the groups' spread, a lucky safe choice counts like a win.
    config.algo.advantage = "dr_grpo"
    config.filter.keep_fraction = 1.0
    # Without it the model repeats the first choice of its example before rewards tell.
    config.loss.entropy_coeff = 0.015
    config.optimizer.learning_rate = 1e-5
    config.schedule.warmup_updates = 5
    config.learner.share_prompts = True
    # Replies get shorter as they get the form.
    config.learner.num_widths = 2
    config.learner.minibatch_rows = 128
    config.learner.microbatch_rows = 64
    config.train.num_iterations = 60
    config.evaluation.every = 20
    config.evaluation.num_prompts = 128
    config.checkpoint.every = 20
    config.checkpoint.keep = 1
    config.checkpoint.keep_best = "success"
    if config.env.name in ("frozen_lake", "sokoban"):
        _board_game(config)


def _board_game(config: ConfigDict) -> None:
    """SmolLM2 on a board: shown as steps from the player, which it need not compute.

    It starts from a model that `launch.sft` has taught the form of an answer, with the
    word `form` of `configs/sft.py`: prompts then need not explain the game.
    """
    config.prompt.style = "terse"
    config.env.kwargs.observation = "relative"
    if config.env.name == "frozen_lake":
        # One reply holds the whole plan, which cannot answer a slip.
        config.env.params.success_rate = 1.0
        # A prompt has 60 to 90 tokens, and 210 where nearly every cell is a hole.
        config.rollout.read_chunk_tokens = 48
    config.rollout.max_reply_tokens = 24
    # Few passes have short replies alone, and compiling a second width takes 20 s.
    config.learner.num_widths = 1
    config.optimizer.learning_rate = 2e-5


def _qwen(config: ConfigDict, path: str) -> None:
    """The paper's setting (StarPO-S, arXiv 2504.20073, section 4) on a real model."""
    config.prompt.style = "full"
    config.prompt.tokenization = "rows"
    config.model.path = path
    config.model.dtype = "bfloat16"
    # Scores of 3,600 tokens take gigabytes a layer: see docs/devices.md.
    config.model.remat = "layers"
    config.rollout.num_groups = 8
    config.rollout.group_size = 16
    config.rollout.max_turns = 5
    config.rollout.max_actions_per_turn = 5
    config.rollout.max_actions_per_episode = 10
    config.rollout.max_reply_tokens = 400
    config.rollout.temperature = 1.0
    # Scores of a whole message take 16 GiB, of 32 tokens 0.9.
    config.rollout.read_chunk_tokens = 32
    # Each part would read all weights for every token.
    config.rollout.part_rows = None
    config.algo.advantage = "gae"
    config.filter.keep_fraction = 0.25
    config.optimizer.learning_rate = 1e-6
    config.critic.learning_rate = 1e-5
    config.learner.minibatch_rows = 32
    config.learner.microbatch_rows = 4
    # Logits of a chunk take 0.3 GB twice.
    config.learner.logprob_chunk_tokens = 512
    config.train.num_iterations = 200
    config.evaluation.every = 10
    config.checkpoint.every = 20
    # Scores of attention take 0.1 GB a thought: 14 heads x 401 x 4,000 tokens.
    config.diagnostics.chunk_rows = 8


def qwen_half_billion(config: ConfigDict) -> None:
    """Qwen2.5-0.5B-Instruct, the paper's model."""
    _qwen(config, "Qwen/Qwen2.5-0.5B-Instruct")


def qwen_half_billion_24gb(config: ConfigDict) -> None:
    """Qwen2.5-0.5B-Instruct on a card of 24 GB: all weights trained, half the groups.

    Policy and critic share a trunk, passes are smaller. By `launch.plan`; see
    `docs/devices.md`.
    """
    qwen_half_billion(config)
    config.rollout.num_groups = 4
    config.critic.trunk = "shared"
    config.learner.microbatch_rows = 2
    config.evaluation.num_prompts = 64


def qwen_one_and_a_half_billion(config: ConfigDict) -> None:
    """Qwen2.5-1.5B-Instruct."""
    _qwen(config, "Qwen/Qwen2.5-1.5B-Instruct")


def qwen_three_billion(config: ConfigDict) -> None:
    """Qwen2.5-3B-Instruct, RAGEN-2's model."""
    _qwen(config, "Qwen/Qwen2.5-3B-Instruct")


def qwen_seven_billion(config: ConfigDict) -> None:
    """Qwen2.5-7B-Instruct, for several GPUs: `mesh.fsdp=8` (docs/scaling.md)."""
    _qwen(config, "Qwen/Qwen2.5-7B-Instruct")


def qwen_vl_three_billion(config: ConfigDict) -> None:
    """Qwen2.5-VL-3B-Instruct, with boards as pictures; no real weights were run."""
    _qwen(config, "Qwen/Qwen2.5-VL-3B-Instruct")
    config.prompt.observation = "image"


_GPUS = 8


def _on_eight_gpus(
    config: ConfigDict, *, times: int = 8, pass_rows: int, remat: str
) -> None:
    """Rows and parameters split over the eight GPUs of a host, of 80 GB each.

    Learning rates are the paper's for its batch, and not tuned. Nothing was run on a
    GPU; what each preset takes by `launch.plan` is in docs/devices.md.

    Args:
      times: rows of an iteration, and of an optimizer step, per row of the paper's.
      pass_rows: rows that a GPU learns from at a time.
      remat: what keeps the most of a layer's activations that fits with them.
    """
    config.mesh.fsdp = _GPUS
    config.rollout.num_groups *= times
    config.learner.minibatch_rows *= times
    config.learner.microbatch_rows = pass_rows * _GPUS
    config.model.remat = remat
    # Both are split over the GPUs.
    config.learner.logprob_chunk_tokens *= _GPUS
    config.diagnostics.chunk_rows *= _GPUS


def qwen_half_billion_8gpus(config: ConfigDict) -> None:
    """Qwen2.5-0.5B-Instruct on eight GPUs of 80 GB: eight times the paper's rows."""
    qwen_half_billion(config)
    _on_eight_gpus(config, pass_rows=16, remat="projections")


def qwen_one_and_a_half_billion_8gpus(config: ConfigDict) -> None:
    """Qwen2.5-1.5B-Instruct on eight GPUs of 80 GB: eight times the paper's rows."""
    qwen_one_and_a_half_billion(config)
    _on_eight_gpus(config, pass_rows=8, remat="projections")


def qwen_three_billion_8gpus(config: ConfigDict) -> None:
    """Qwen2.5-3B-Instruct on eight GPUs of 80 GB: eight times the paper's rows."""
    qwen_three_billion(config)
    _on_eight_gpus(config, pass_rows=4, remat="projections")


def qwen_vl_three_billion_8gpus(config: ConfigDict) -> None:
    """Qwen2.5-VL-3B-Instruct on eight GPUs of 80 GB: eight times the paper's rows."""
    qwen_vl_three_billion(config)
    _on_eight_gpus(config, pass_rows=4, remat="projections")


def qwen_seven_billion_8gpus(config: ConfigDict) -> None:
    """Qwen2.5-7B-Instruct on eight GPUs of 80 GB: four times the paper's rows."""
    qwen_seven_billion(config)
    _on_eight_gpus(config, times=4, pass_rows=4, remat="attention")


def qwen3_half_billion(config: ConfigDict) -> None:
    """Qwen3-0.6B."""
    _qwen(config, "Qwen/Qwen3-0.6B")


def qwen3_two_billion(config: ConfigDict) -> None:
    """Qwen3-1.7B."""
    _qwen(config, "Qwen/Qwen3-1.7B")


def qwen3_four_billion(config: ConfigDict) -> None:
    """Qwen3-4B."""
    _qwen(config, "Qwen/Qwen3-4B")


def qwen3_eight_billion(config: ConfigDict) -> None:
    """Qwen3-8B."""
    _qwen(config, "Qwen/Qwen3-8B")


def apply_presets(config: ConfigDict, names: str) -> None:
    """Apply presets in place: size, then variant, then estimator.

    Args:
      config: changed in place.
      names: separated by commas; without a size, "pocket".

    Raises:
      ValueError: there is no such preset, or two of one kind; the message lists them.
    """
    for kind, name in choose(names, PRESETS, {"size": "pocket"}).items():
        PRESETS[kind][name](config)


def choose(
    names: str, kinds: Mapping[str, Collection[str]], chosen: Mapping[str, str]
) -> dict[str, str]:
    """One preset of each kind, in the order of the kinds.

    Args:
      names: separated by commas.
      kinds: the names of each kind.
      chosen: names that count where `names` has none of their kind.

    Raises:
      ValueError: there is no such preset, or two of one kind; the message lists them.
    """
    listed = "; ".join(f"{kind}: {', '.join(known)}" for kind, known in kinds.items())
    given: dict[str, str] = {}
    for name in filter(None, names.split(",")):
        kind = next((k for k, known in kinds.items() if name in known), None)
        if kind is None:
            hint = did_you_mean(name, itertools.chain(*kinds.values()))
            raise ValueError(f"no preset {name!r}; presets are {listed}.{hint}")
        if kind in given:
            raise ValueError(
                f"presets {given[kind]!r} and {name!r} both choose the {kind}; give "
                f"one of each kind ({listed})"
            )
        given[kind] = name
    chosen = {**chosen, **given}
    return {kind: chosen[kind] for kind in kinds if kind in chosen}


SIZES = {
    "pocket": pocket,
    "pocket_vision": pocket_vision,
    "study": study,
    "smollm2-135m": smollm2,
    "qwen2.5-0.5b": qwen_half_billion,
    "qwen2.5-0.5b-24gb": qwen_half_billion_24gb,
    "qwen2.5-0.5b-8gpus": qwen_half_billion_8gpus,
    "qwen2.5-1.5b": qwen_one_and_a_half_billion,
    "qwen2.5-1.5b-8gpus": qwen_one_and_a_half_billion_8gpus,
    "qwen2.5-3b": qwen_three_billion,
    "qwen2.5-3b-8gpus": qwen_three_billion_8gpus,
    "qwen2.5-vl-3b": qwen_vl_three_billion,
    "qwen2.5-vl-3b-8gpus": qwen_vl_three_billion_8gpus,
    "qwen2.5-7b": qwen_seven_billion,
    "qwen2.5-7b-8gpus": qwen_seven_billion_8gpus,
    "qwen3-0.6b": qwen3_half_billion,
    "qwen3-1.7b": qwen3_two_billion,
    "qwen3-4b": qwen3_four_billion,
    "qwen3-8b": qwen3_eight_billion,
}

# In the order in which they are applied.
PRESETS = {
    "size": SIZES,
    "variant": algorithms.VARIANTS,
    "estimator": algorithms.ESTIMATORS,
}
