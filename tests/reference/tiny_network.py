"""The tests' tiny policy in float64, its gradient written out by hand, and its steps.

Index `t` of every result speaks of the moment at which token `t` was drawn; index 0,
which nothing precedes, is 0.
"""

import math

import jax
import numpy as np

from tests.reference.update_oracle import adamw


class Reading:
    """What one network says of rows of tokens.

    Attributes:
      log_probs, entropy, values: [B, T]; values need a critic's head.
    """

    def __init__(self, params, tokens, temperature, head=None):
        self._params, self._tokens, self._temperature = params, tokens, temperature
        self._critic_head = head
        self._count = np.arange(1, tokens.shape[1] + 1)[None, :, None]
        self._mean = np.cumsum(params["embed"][tokens], axis=1) / self._count
        self._bent = np.tanh(2 * self._mean @ params["mix"])
        self._hidden = self._bent * params["scale"]
        logits = self._hidden[:, :-1] @ params["head"].T / temperature
        logits = logits - logits.max(axis=-1, keepdims=True)
        self._log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        chosen = np.take_along_axis(self._log_p, tokens[:, 1:, None], axis=-1)[..., 0]
        entropy = -(np.exp(self._log_p) * self._log_p).sum(axis=-1)
        self.log_probs, self.entropy = _behind_nothing(chosen), _behind_nothing(entropy)
        self.values = None
        if head is not None:
            values = self._hidden[:, :-1] @ head["kernel"] + head["bias"]
            self.values = _behind_nothing(values)

    def gradient(self, by_log_prob, by_entropy, by_value=None) -> tuple[dict, dict]:
        """Of a loss with these derivatives [B, T]: by the params, by the critic's head.

        dH/dz = -p (log p + H), dlog p_i/dz = 1_i - p, for logits z = h W / temperature.
        """
        p, entropy = np.exp(self._log_p), self.entropy[:, 1:, None]
        is_chosen = np.arange(p.shape[-1]) == self._tokens[:, 1:, None]
        by_logits = by_log_prob[:, 1:, None] * (is_chosen - p)
        by_logits -= by_entropy[:, 1:, None] * p * (self._log_p + entropy)
        by_logits = by_logits / self._temperature
        hidden = self._hidden[:, :-1]
        by_hidden = np.zeros_like(self._hidden)
        by_hidden[:, :-1] = by_logits @ self._params["head"]
        by_critic_head = {}
        if by_value is not None:
            by_hidden[:, :-1] += by_value[:, 1:, None] * self._critic_head["kernel"]
            by_critic_head = {
                "kernel": np.einsum("bt,btd->d", by_value[:, 1:], hidden),
                "bias": by_value[:, 1:].sum()[None],
            }
        by_bent = by_hidden * self._params["scale"] * (1 - self._bent**2)
        by_mean = 2 * by_bent @ self._params["mix"].T / self._count
        by_token = np.cumsum(by_mean[:, ::-1], axis=1)[:, ::-1]
        by_embed = np.zeros_like(self._params["embed"])
        np.add.at(by_embed, self._tokens, by_token)
        return {
            "embed": by_embed,
            "mix": 2 * np.einsum("bti,btj->ij", self._mean, by_bent),
            "head": np.einsum("btv,btd->vd", by_logits, hidden),
            "scale": (by_hidden * self._bent).sum(axis=(0, 1)),
        }, by_critic_head


def _behind_nothing(x):
    return np.pad(x, [(0, 0), (1, 0)])


class Network:
    """Parameters and AdamW's moments by dotted name."""

    def __init__(self, params):
        named, _ = jax.tree.flatten_with_path(params)
        self.params = {
            ".".join(k.key for k in path): np.asarray(x, np.float64)
            for path, x in named
        }
        self.first = {name: np.zeros_like(x) for name, x in self.params.items()}
        self.second = {name: np.zeros_like(x) for name, x in self.params.items()}
        self.steps = 0

    def part(self, prefix):
        """Parameters of that prefix, by the rest of their names."""
        start = f"{prefix}." if prefix else ""
        return {
            name.removeprefix(start): x
            for name, x in self.params.items()
            if name.startswith(start)
        }

    def step(self, grads, rate, optimizer) -> None:
        scale = min(1.0, optimizer.max_grad_norm / max(norm_of(grads), 1e-30))
        self.steps += 1
        settings = optimizer.to_dict() | {"learning_rate": rate}
        for name, grad in grads.items():
            adamw(
                self.params,
                self.first,
                self.second,
                name,
                grad * scale,
                self.steps,
                settings,
            )


def norm_of(grads) -> float:
    return math.sqrt(sum((x**2).sum() for x in grads.values()))
