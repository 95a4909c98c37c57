"""Estimates of information next to the exact values, for the built-in model.

    python -m benchmarks.information [--json=FILE] [--plot=FILE.png]

The world: first prompts of some Sokoban levels, and the first tokens of the thought
after them, drawn from the model's distribution renormalised on eight tokens:
`P X O 1 2 3 4 </think>`. Every thought of up to `--length` tokens is enumerated, so all
entropies are known exactly. Estimates are then made from drawn thoughts, again and
again, as training makes them. One to two minutes on 2 cores; `docs/collapse.md` says
what it shows.
"""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.exact_information import (
    enumerate_replies,
    exact_information,
    reply_log_probs,
)
from configs import sokoban
from launch import command
from ragen_jax import rngs
from ragen_jax.diagnostics.mutual_information import STD_EPSILON, estimates
from ragen_jax.program.build import Program, build_program

NUM_PROMPTS, NUM_REPLIES = (2, 4, 8, 16, 32), (1, 4, 16)

_PROMPTS = flags.DEFINE_integer(
    "prompts", 32, "Prompts of the closed world.", lower_bound=max(NUM_PROMPTS)
)
_LENGTH = flags.DEFINE_integer("length", 5, "Tokens of the longest reply.")
_DRAWS = flags.DEFINE_integer("draws", 200, "Estimates made of each kind.")
_PLOT = flags.DEFINE_string("plot", None, "Also draw them (needs matplotlib).")
harness.define_json()

ALPHABET = ("P", "X", "O", "1", "2", "3", "4", "</think>")
# Prompts and replies of the other tables.
USUAL = (16, 4)
FORMS = ("mi_seq_estimate", "mi_estimate_paper", "mi_estimate")
MEASURES = (
    *FORMS,
    "conditional_entropy_seq_est",
    "reasoning_entropy_seq_est",
    "retrieval_accuracy",
    "mi_zscore",
)

Figures = dict[str, float | str]


class ClosedWorld:
    """Replies of up to `length` tokens, and their log-probabilities."""

    def __init__(self, program: Program, prompts: tuple, length: int):
        tokenizer = program.task.tokenizer
        alphabet = tuple(tokenizer.encode(symbol)[0] for symbol in ALPHABET)
        self.stop = alphabet[-1]
        self.texts, self.lengths = enumerate_replies(alphabet, length, self.stop)
        read = functools.partial(
            reply_log_probs,
            program.policy,
            alphabet=alphabet,
            length=length,
            stop=self.stop,
            temperature=1.0,
        )
        params = program.play_params(program.state)
        self.log_probs = np.asarray(jax.jit(read)(params, *prompts), np.float64)
        self.exact = exact_information(self.log_probs)
        probs = np.exp(self.log_probs)
        self.mean_length = float(probs.mean(axis=0) @ self.lengths)
        self.below = np.cumsum(probs, axis=1)

    def limits(self) -> Figures:
        """What the estimates tend to: all prompts, endlessly many replies."""
        joint = np.exp(self.log_probs) / len(self.log_probs)
        per_token = self.log_probs / self.lengths
        marginal, marginal_per_token = (
            np.logaddexp.reduce(x, axis=0) - np.log(len(x))
            for x in (self.log_probs, per_token)
        )
        gain = np.sum(joint * (per_token - marginal_per_token))
        middle = np.sum(joint * marginal_per_token)
        spread = np.sqrt(np.sum(joint * (marginal_per_token - middle) ** 2))
        values = {
            "mi_seq_estimate": self.exact.mutual,
            "mi_estimate_paper": np.sum(
                joint * (self.log_probs - marginal) / self.lengths
            ),
            "mi_estimate": gain,
            "conditional_entropy_seq_est": self.exact.conditional,
            "reasoning_entropy_seq_est": self.exact.entropy,
            # The likeliest prompt is guessed.
            "retrieval_accuracy": np.sum(joint.max(axis=0)),
            "mi_zscore": gain / (spread + STD_EPSILON),
        }
        return {name: float(value) for name, value in values.items()}

    def without_stop(self) -> tuple[float, float]:
        """Replies that are not empty: their information, and what training measures.

        Training scores thoughts without their closing tag.
        """
        said = self.texts[:, 0] != self.stop
        probs, begun = np.exp(self.log_probs), np.zeros_like(self.log_probs)
        is_stopped = self.texts[np.arange(len(said)), self.lengths - 1] == self.stop
        sizes = self.lengths - is_stopped
        for size in range(1, self.texts.shape[1] + 1):
            # All replies that begin with the same tokens.
            long = np.flatnonzero(sizes >= size)
            _, same = np.unique(self.texts[long, :size], axis=0, return_inverse=True)
            totals = np.zeros((len(probs), same.max() + 1))
            np.add.at(totals, (slice(None), same), probs[:, long])
            of_size = sizes[long] == size
            begun[:, long[of_size]] = totals[:, same[of_size]]
        shares = probs[:, said].sum(axis=1)
        given, shares = probs[:, said] / shares[:, None], shares / shares.sum()
        scores = {"exact": given, "trained": begun[:, said]}
        values = {
            name: np.sum(shares[:, None] * given * np.log(x / (shares @ x)))
            for name, x in scores.items()
        }
        return float(values["exact"]), float(values["trained"])

    def estimate(self, key, num_prompts: int, num_replies: int) -> Mapping[str, float]:
        """One set of estimates, of replies drawn under prompts drawn without return."""
        prompt_key, reply_key = jax.random.split(key)
        order = jax.random.permutation(prompt_key, len(self.log_probs))
        chosen = np.asarray(order[:num_prompts])
        scores = self.log_probs[chosen]
        # By the inverse of the cumulative distribution.
        draws = np.asarray(jax.random.uniform(reply_key, (num_prompts, num_replies)))
        replies = [
            np.searchsorted(self.below[x], draw * self.below[x, -1])
            for x, draw in zip(chosen, draws, strict=True)
        ]
        replies = np.minimum(np.concatenate(replies), scores.shape[1] - 1)
        prompt_of = np.repeat(np.arange(num_prompts), num_replies)
        return estimates(scores[:, replies].T, self.lengths[replies], prompt_of)

    def spread(self, num_prompts: int, num_replies: int) -> dict[str, tuple]:
        """Mean and standard deviation of each form over many estimates."""
        root = jax.random.key(num_prompts * 100 + num_replies)
        made = [
            self.estimate(jax.random.fold_in(root, i), num_prompts, num_replies)
            for i in range(_DRAWS.value)
        ]
        columns = {form: np.array([one[form] for one in made]) for form in MEASURES}
        return {f: (float(x.mean()), float(x.std())) for f, x in columns.items()}


def first_prompts(program: Program, count: int):
    """Different first prompts, padded, and their lengths."""
    params = program.play_params(program.state)
    prompts, step = {}, 0
    while len(prompts) < count:
        key = rngs.step_key(rngs.root_key(0), step)
        batch = jax.device_get(program.join(program.collect(params, key)))
        starts = batch.turns.reply_start[:, 0]
        texts = zip(batch.tokens, starts, strict=True)
        prompts |= dict.fromkeys(tuple(t[:n].tolist()) for t, n in texts)
        step += 1
    chosen = list(prompts)[:count]
    width = max(map(len, chosen))
    padded = [text + (0,) * (width - len(text)) for text in chosen]
    return jnp.asarray(padded), jnp.asarray([len(text) for text in chosen])


def by_length(worlds: Sequence[ClosedWorld]) -> list[Figures]:
    """Exact values, what each form tends to and its mean estimate."""
    rows = []
    for world in worlds:
        drawn = world.spread(*USUAL)
        longest = int(world.lengths.max())
        row = {"length": longest, "mean_length": world.mean_length}
        row |= world.exact._asdict()
        limits = world.limits()
        for form in FORMS:
            row |= {f"{form} limit": limits[form], form: drawn[form][0]}
        rows.append(row)
    return rows


def by_size(world: ClosedWorld) -> list[Figures]:
    """Estimates of the information, by prompts and replies."""
    rows = []
    for num_prompts in NUM_PROMPTS:
        for num_replies in NUM_REPLIES:
            drawn = world.spread(num_prompts, num_replies)
            row = {"prompts": num_prompts, "replies": num_replies}
            for name in MEASURES:
                row |= dict(zip((name, f"{name} std"), drawn[name], strict=True))
            rows.append(row)
    limits = world.limits()
    limit = {"prompts": len(world.log_probs), "replies": "endless"}
    for name in MEASURES:
        limit |= {name: limits[name], f"{name} std": 0.0}
    return [*rows, limit]


def show(title: str, rows: list[Figures]) -> None:
    """A Markdown table; a standard deviation follows its mean."""

    def cell(row: Figures, name: str) -> str:
        if not isinstance(row[name], float):
            return str(row[name])
        std = row.get(f"{name} std", 0.0)
        return f"{row[name]:.3f}" + (f" ± {std:.3f}" if std else "")

    names = [name for name in rows[0] if not name.endswith(" std")]
    print(f"\n{title}\n")
    harness.print_rows({name: cell(row, name) for name in names} for row in rows)


def plot(
    path: str, world: ClosedWorld, sizes: list[Figures], lengths: list[Figures]
) -> None:
    """The bias by prompts, and the forms by length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    for num_replies in NUM_REPLIES:
        of_number = [row for row in sizes if row["replies"] == num_replies]
        left.errorbar(
            [row["prompts"] for row in of_number],
            [row["mi_seq_estimate"] for row in of_number],
            [row["mi_seq_estimate std"] for row in of_number],
            marker="o",
            capsize=3,
            label=f"{num_replies} replies each",
        )
    left.plot(NUM_PROMPTS, np.log(NUM_PROMPTS), ":", color="gray", label="ln N")
    left.axhline(world.exact.mutual, color="black", label="exact, all prompts")
    left.set(xscale="log", xlabel="prompts N", ylabel="nats per reply")
    left.set_xticks(NUM_PROMPTS, labels=map(str, NUM_PROMPTS))
    left.minorticks_off()
    left.set_title("mi_seq_estimate: bias by N, spread by K")
    tokens = [row["length"] for row in lengths]
    exact = [row["mutual"] / row["mean_length"] for row in lengths]
    right.plot(tokens, exact, color="black", label="exact I / mean length")
    for form in FORMS[1:]:
        right.plot(tokens, [row[f"{form} limit"] for row in lengths], "o-", label=form)
    right.set(xlabel="tokens of the longest reply", ylabel="nats per token")
    right.set_xticks(tokens)
    right.set_title("per token: what the two forms tend to")
    left.legend()
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(_: list[str]) -> int:
    config = sokoban.get_config()
    config.rollout.max_turns = 1
    config.algo.advantage = "grpo"
    program = build_program(config)
    prompts = first_prompts(program, _PROMPTS.value)
    longest = range(1, _LENGTH.value + 1)
    worlds = [ClosedWorld(program, prompts, length) for length in longest]
    world = worlds[-1]
    lengths, sizes = by_length(worlds), by_size(world)
    exact = world.exact
    print(
        f"{_PROMPTS.value} prompts (ln = {np.log(_PROMPTS.value):.3f}), replies of up "
        f"to {_LENGTH.value} tokens, {world.log_probs.shape[1]} of them: exactly "
        f"I(X;Z) = {exact.mutual:.4f}, H(Z|X) = {exact.conditional:.4f}, H(Z) = "
        f"{exact.entropy:.4f} nats; {world.mean_length:.2f} tokens on average"
    )
    said, trained = world.without_stop()
    print(
        f"replies that are not empty: exactly {said:.4f} nats; scored without their "
        f"stop token, as in training: {trained:.4f}"
    )
    show(f"By length, N x K = {USUAL[0]} x {USUAL[1]}, mean of draws", lengths)
    show("By prompts and replies, mean ± standard deviation of draws", sizes)
    harness.write_json(
        {"exact": exact._asdict(), "by_length": lengths, "by_size": sizes}
    )
    if _PLOT.value is not None:
        plot(_PLOT.value, world, sizes, lengths)
    return 0


if __name__ == "__main__":
    command.run(main)
