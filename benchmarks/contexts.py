"""Real rollouts in each context: transcripts and times for `docs/context.md`.

    python -m benchmarks.contexts             # rewrite the transcripts
    python -m benchmarks.contexts --time      # measure and rewrite the times

Sampled tokens stand in brackets. Both replace the text between the page's comments
`<!-- name -->` and `<!-- end -->`.
"""

import functools
import pathlib
import time

from absl import app, flags

import envs
from benchmarks import harness
from envs.base import PlayBudget
from ragen_jax.runs import markdown

_TIME = flags.DEFINE_bool("time", False, "Measure times instead of transcripts.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured rollouts per context.")

DOCUMENT = pathlib.Path(__file__).parent.parent / "docs" / "context.md"
BUDGET = PlayBudget(max_turns=5, max_actions_per_turn=2, max_actions_per_episode=10)
REPLY_TOKENS = 24
SHOWN = {"full": None, "last_k": 2, "single_turn": 2}
TIMED = (
    *(("full", None), ("last_k", 1), ("last_k", 2), ("last_k", 5)),
    *(("single_turn", 1), ("single_turn", 3)),
)
# The episode shown is the first of these that takes three turns and is won.
SEED, NUM_EPISODES = 0, 64
OPEN, CLOSE = "⟦", "⟧"


@functools.cache
def _player():
    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.models.policy import build_policy
    from ragen_jax.program.build import POCKET
    from ragen_jax.text.tokenizer import load_tokenizer

    model, params = load_checkpoint(POCKET)
    return envs.make("sokoban"), load_tokenizer(POCKET), build_policy(model), params


def build_collect(context: str, turns: int | None, num_groups: int, group_size: int):
    """`collect(seed) -> Trajectory` of the pocket model in a context, and its size."""
    import jax

    from ragen_jax.devices.sharding import make_mesh
    from ragen_jax.rollout.collect import make_collect
    from ragen_jax.rollout.keys import rollout_keys
    from ragen_jax.rollout.turns import EpisodeLimits
    from ragen_jax.text.dialogue import build_dialogue

    env, tokenizer, policy, params = _player()
    dialogue = build_dialogue(
        env,
        tokenizer,
        style="terse",
        tokenization="symbols",
        budget=BUDGET,
        max_reply_tokens=REPLY_TOKENS,
        length_hint_words=100,
        context=context,
        context_turns=turns,
    )
    collect = make_collect(
        env,
        env.default_params,
        policy,
        mesh=make_mesh(data=1, fsdp=1, tensor=1),
        num_groups=num_groups,
        group_size=group_size,
        rules=EpisodeLimits(BUDGET, REPLY_TOKENS, format_penalty=-0.1),
        temperature=0.5,
        top_k=None,
        top_p=None,
        decode_chunk_tokens=8,
    )

    def play(seed: int):
        keys = rollout_keys(jax.random.key(seed), num_groups, group_size)
        return collect(params, dialogue, keys)

    return play, dialogue.max_window_tokens


def transcript(trajectory, row: int, tokenizer) -> str:
    """What the model read and, in brackets, what it sampled in an episode.

    The whole dialogue where it read that; else a block per window.
    """
    import numpy as np

    if trajectory.windows is None:
        count = int(trajectory.lengths[row])
        rows = [(trajectory.tokens[row, :count], trajectory.loss_mask[row, :count])]
    else:
        from ragen_jax.learner.batch import to_rows

        windows = trajectory.windows
        masks = to_rows(trajectory.loss_mask, trajectory)
        masks = masks.reshape(windows.tokens.shape)[row]
        rows = [
            (windows.tokens[row, turn, :count], masks[turn, :count])
            for turn in np.flatnonzero(trajectory.turns.played[row])
            for count in [int(windows.lengths[row, turn])]
        ]
    return "\n".join(f"```text\n{_marked(*x, tokenizer)}\n```" for x in rows)


def _marked(tokens, is_sampled, tokenizer) -> str:
    import numpy as np

    borders = np.flatnonzero(np.diff(np.asarray(is_sampled, int))) + 1
    runs = np.split(np.arange(len(tokens)), borders)
    texts = [tokenizer.decode(np.asarray(tokens)[run]) for run in runs]
    return "".join(
        f"{OPEN}{text}{CLOSE}" if is_sampled[run[0]] else text
        for run, text in zip(runs, texts, strict=True)
    )


def write_transcripts(document: str) -> str:
    """The document with new transcripts."""
    _, tokenizer, _, _ = _player()
    for context, turns in SHOWN.items():
        play, _ = build_collect(context, turns, NUM_EPISODES, 1)
        trajectory = play(SEED)
        text = transcript(trajectory, pick(trajectory), tokenizer)
        document = markdown.replace_marked(document, context, f"\n{text}\n\n")
    return document


def pick(trajectory) -> int:
    """The first row that takes three turns and is won.

    Raises:
      ValueError: no row does.
    """
    import numpy as np

    num_turns = np.sum(np.asarray(trajectory.turns.played), axis=1)
    rows = np.flatnonzero(np.asarray(trajectory.success) & (num_turns == 3))
    if not rows.size:
        raise ValueError("no episode takes three turns and is won; change SEED")
    return int(rows[0])


def write_times(document: str) -> str:
    """The document with new times."""
    import statistics

    import jax

    columns = ("tokens at most", "seconds (least)", "(median)", "success")
    lines = [markdown.table(("context", "turns", *columns), [])]
    for context, turns in TIMED:
        play, window = build_collect(context, turns, 16, 8)
        jax.block_until_ready(play(0))
        seconds, success = [], []
        for seed in range(1, _REPEATS.value + 1):
            began = time.perf_counter()
            trajectory = jax.block_until_ready(play(seed))
            seconds.append(time.perf_counter() - began)
            success.append(float(trajectory.success.mean()))
        share = f"{statistics.mean(success):.0%}"
        times = harness.times(seconds, 2).values()
        cells = (f"`{context}`", turns or "all", window, *times, share)
        lines.append(markdown.row(cells))
        print(lines[-1], flush=True)
    table = "\n".join(lines)
    return markdown.replace_marked(document, "times", f"\n{table}\n\n")


def main(_: list[str]) -> None:
    write = write_times if _TIME.value else write_transcripts
    document = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(write(document), encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
