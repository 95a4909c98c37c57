"""The learner as one would write it in PyTorch: transformers' network, AdamW, a loop.

The same algorithm as ours, for the estimators "grpo" and "gae" and the filter
"top_fraction" on the standard deviation of rewards: filter, advantages, minibatches,
each accumulated over microbatches, clipped loss with an entropy bonus, gradient
clipping, AdamW. Float32, or with `model.dtype` bfloat16 under autocast. What a careful
user would do for speed is done: fused AdamW, attention by
`scaled_dot_product_attention`, rows cut to the longest of a microbatch.
"""

import copy
import dataclasses
import pathlib

import numpy as np
import torch
from ml_collections import ConfigDict
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from ragen_jax.algo.rewards import episode_rewards, raw_episode_rewards
from ragen_jax.program.build import num_ids
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import Trajectory


@dataclasses.dataclass(frozen=True)
class Episodes:
    """What is learned from, as NumPy arrays; rows of a group are adjacent.

    Attributes:
      tokens: [B, T], int; padding is 0.
      lengths: [B].
      mask: [B, T], trained tokens.
      sample_log_probs: [B, T], the sampler's.
      rewards: [B], what the game paid: what the filter looks at.
      totals: [B], format penalties included: what is learned from.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    mask: np.ndarray
    sample_log_probs: np.ndarray
    rewards: np.ndarray
    totals: np.ndarray


def as_episodes(trajectory: Trajectory) -> Episodes:
    """A rollout of ragen_jax."""
    turns = trajectory.turns
    arrays = (
        trajectory.tokens,
        trajectory.lengths,
        trajectory.loss_mask,
        trajectory.sample_log_probs,
        raw_episode_rewards(turns.reward, turns.played),
        episode_rewards(turns.reward, turns.penalty, turns.bonus, turns.played),
    )
    return Episodes(*(np.asarray(x) for x in arrays))


class Critic(nn.Module):
    """A copy of the policy's trunk with a value head that starts at 0."""

    def __init__(self, policy: PreTrainedModel):
        super().__init__()
        self.trunk = copy.deepcopy(policy.model)
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Values before each token but the first, [b, T - 1]."""
        hidden = self.trunk(tokens, use_cache=False).last_hidden_state
        return self.head(hidden[:, :-1])[..., 0]


class TorchLearner:
    """Networks and their optimizers.

    Attributes:
      policy: what plays.
      num_ids: ids from here on have no probability; None: all ids are tokens.
      microbatch_rows: rows per pass; may be changed between updates.
    """

    def __init__(self, folder: pathlib.Path, config: ConfigDict):
        """Args:
        folder: the checkpoint, in Hugging Face layout.
        config: of a ragen_jax run, without options that are not named above.

        Raises:
          ValueError: the configuration asks for something else.
        """
        _check(config)
        self._config = config
        self.microbatch_rows = config.learner.microbatch_rows
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.policy = policy.to(self.device).eval()
        self.num_ids = num_ids(config.model.path, load_tokenizer(folder))
        self.critic = None
        self._optimizers = [self._adamw(policy, config.optimizer.learning_rate)]
        if config.algo.advantage == "gae":
            self.critic = Critic(self.policy)
            rate = config.critic.learning_rate
            self._optimizers.append(self._adamw(self.critic, rate))

    def _adamw(self, network: nn.Module, rate: float) -> torch.optim.AdamW:
        settings = self._config.optimizer
        return torch.optim.AdamW(
            network.parameters(),
            lr=rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def update(self, episodes: Episodes, order: np.ndarray) -> dict[str, float]:
        """One update.

        Args:
          episodes: the rollout.
          order: all rows, in the order in which minibatches take them.

        Returns:
          Means over the kept tokens and over the steps; see `STATS`.
        """
        config = self._config
        group_size = config.rollout.group_size
        is_kept = keep_groups(episodes.rewards, group_size, config.filter.keep_fraction)
        rows = torch.as_tensor(order[is_kept[order]], device=self.device)
        data = self._tensors(episodes)
        if self.critic is None:
            advantages = group_relative(episodes.totals, group_size)
            data["advantages"] = self._put(advantages)[:, None] * data["mask"]
        else:
            self._criticise(data, rows, episodes.totals)
        sums, steps = torch.zeros(len(STATS), device=self.device), 0
        for minibatch in rows.split(config.learner.minibatch_rows):
            num_tokens = data["mask"][minibatch].sum()
            for part in minibatch.split(self.microbatch_rows):
                with self.in_dtype():
                    loss, told = self._loss(data, part)
                (loss / num_tokens).backward()
                sums[:2] += told
            sums[2] += self._step()
            steps += 1
        sums[:2] /= data["mask"][rows].sum()
        sums[2] /= steps
        return dict(zip(STATS, sums.tolist(), strict=True))

    def in_dtype(self) -> torch.autocast:
        """Context of the networks' passes, for `model.dtype`."""
        is_narrow = self._config.model.dtype == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_narrow)

    def log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """Of each token given those before it, [B, T]; 0 at the first."""
        parts = self._put(tokens).long()
        with torch.no_grad(), self.in_dtype():
            read = [
                self._read(part, torch.ones_like(part[:, 1:]).bool())[0]
                for part in parts.split(self.microbatch_rows)
            ]
        return np.pad(torch.cat(read).cpu().numpy(), [(0, 0), (1, 0)])

    def _tensors(self, episodes: Episodes) -> dict[str, torch.Tensor]:
        """What the loss looks at; per-token arrays begin at the second token."""
        return {
            "tokens": self._put(episodes.tokens).long(),
            "lengths": self._put(episodes.lengths).long(),
            "mask": self._put(episodes.mask[:, 1:]).float(),
            "old": self._put(episodes.sample_log_probs[:, 1:]).float(),
        }

    def _put(self, x: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.array(x), device=self.device)

    def _read(
        self, tokens: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of each token but the first, [b, T - 1].

        0 outside of the mask: the output head reads no more than it has to.
        """
        hidden = self.policy.model(tokens, use_cache=False).last_hidden_state[:, :-1]
        logits = self.policy.lm_head(hidden[mask])[:, : self.num_ids].float()
        whole = torch.log_softmax(logits / self._config.rollout.temperature, dim=-1)
        chosen = whole.gather(-1, tokens[:, 1:][mask][:, None])[:, 0]
        nothing = torch.zeros(mask.shape, device=mask.device)
        return (
            nothing.masked_scatter(mask, chosen),
            nothing.masked_scatter(mask, -(whole.exp() * whole).sum(-1)),
        )

    def _loss(self, data, rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the loss over the rows' trained tokens, and two sums to report."""
        settings = self._config.loss
        width = int(data["lengths"][rows].max())
        tokens = data["tokens"][rows, :width]
        mask, old, advantages = (
            data[name][rows, : width - 1] for name in ("mask", "old", "advantages")
        )
        log_probs, entropy = self._read(tokens, mask.bool())
        ratio = ((log_probs - old) * mask).clamp(-20, 20).exp()
        low, high = 1 - settings.clip_low, 1 + settings.clip_high
        loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
        if settings.dual_clip is not None:
            bound = torch.minimum(loss, -advantages * settings.dual_clip)
            loss = torch.where(advantages < 0, bound, loss)
        policy_loss, entropy = (loss * mask).sum(), (entropy * mask).sum()
        total = policy_loss - settings.entropy_coeff * entropy
        if self.critic is not None:
            total = total + self._value_loss(data, rows, tokens, mask)
        return total, torch.stack([policy_loss, entropy]).detach()

    def _value_loss(self, data, rows, tokens, mask) -> torch.Tensor:
        settings, width = self._config.critic, mask.shape[1]
        values = self.critic(tokens)
        old, returns = data["values"][rows, :width], data["returns"][rows, :width]
        squares = (values - returns) ** 2
        if settings.clip_value is not None:
            held = old + (values - old).clamp(-settings.clip_value, settings.clip_value)
            squares = torch.maximum(squares, (held - returns) ** 2)
        return settings.loss_coeff * 0.5 * (squares * mask).sum()

    def _criticise(self, data, rows, totals: np.ndarray) -> None:
        mask = data["mask"] * torch.zeros_like(data["mask"]).index_fill(0, rows, 1.0)
        values = torch.zeros_like(mask)
        with torch.no_grad():
            for part in rows.split(self.microbatch_rows):
                width = int(data["lengths"][part].max())
                values[part, : width - 1] = self.critic(data["tokens"][part, :width])
        # lam = gamma = 1 and all reward at the end: the advantage of a token is the
        # episode's total less its value.
        returns = self._put(totals).float()[:, None] * mask
        advantages = (returns - values) * mask
        count = mask.sum()
        mean = advantages.sum() / count
        variance = (((advantages - mean) * mask) ** 2).sum() / (count - 1)
        whitened = (advantages - mean) / torch.sqrt(variance + 1e-8)
        data["advantages"] = whitened * mask
        data["values"], data["returns"] = values, returns

    def _step(self) -> float:
        """A step of every network; the norm of the policy's gradient."""
        norms = []
        networks = [self.policy] if self.critic is None else [self.policy, self.critic]
        for network, optimizer in zip(networks, self._optimizers, strict=True):
            norm = nn.utils.clip_grad_norm_(
                network.parameters(), self._config.optimizer.max_grad_norm
            )
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            norms.append(norm)
        return float(norms[0])


def keep_groups(rewards: np.ndarray, group_size: int, fraction: float) -> np.ndarray:
    """Rows of the groups with the largest standard deviation of rewards."""
    spread = rewards.reshape(-1, group_size).std(axis=1, ddof=1)
    count = max(1, int(fraction * len(spread)))
    is_kept = np.zeros(len(spread), bool)
    is_kept[np.argsort(-spread, kind="stable")[:count]] = True
    return np.repeat(is_kept, group_size)


def group_relative(totals: np.ndarray, group_size: int) -> np.ndarray:
    """GRPO's advantages."""
    grouped = totals.reshape(-1, group_size).astype(np.float32)
    std = grouped.std(axis=1, ddof=1, keepdims=True)
    return ((grouped - grouped.mean(axis=1, keepdims=True)) / (std + 1e-6)).reshape(-1)


def _check(config: ConfigDict) -> None:
    """Refuse what this learner would silently do differently."""
    needed = {
        "algo.gamma": 1.0,
        "algo.lam": 1.0,
        "algo.reward_placement": "episode",
        "algo.normalization": "identity",
        "filter.score": "reward_std",
        "filter.rule": "top_fraction",
        "filter.keep_zero": True,
        "loss.policy": "ppo",
        "loss.aggregation": "token_mean",
        "loss.importance_cap": None,
        "kl.placement": None,
        "critic.trunk": "separate",
        "learner.epochs": 1,
        "learner.updates_per_rollout": 1,
        "lora.rank": None,
        "rollout.context": "full",
        "env.mix": None,
    }
    for path, value in needed.items():
        section, name = path.split(".")
        if config[section][name] != value:
            raise ValueError(
                f"the torch peer knows {path} = {value!r} only, not "
                f"{config[section][name]!r}; leave the peer out or change the key"
            )
    if config.algo.advantage not in ("grpo", "gae"):
        raise ValueError(
            f"the torch peer knows algo.advantage 'grpo' and 'gae', not "
            f"{config.algo.advantage!r}"
        )


STATS = ("policy_loss", "entropy", "grad_norm")
