"""Forward and backward passes over chosen rows, one microbatch at a time.

In: networks, the samples of all rows and indices of some, kept rows first. Out: the
networks' numbers for their tokens, or the gradient of their loss. Only as many
microbatches run as the rows fill, each as wide as its longest row needs.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from ragen_jax.devices.sharding import (
    by_rows,
    constrained,
    copies_compute_apart,
    num_row_shards,
    on_each_copy,
    on_each_device,
)
from ragen_jax.learner.logprobs import hidden_states, token_log_probs, token_values
from ragen_jax.learner.loss import (
    Objective,
    Predictions,
    Samples,
    TokenStats,
    TokenSums,
)
from ragen_jax.learner.prompts import SharedPrompts
from ragen_jax.models.critic import Critic
from ragen_jax.models.policy import Policy
from ragen_jax.models.widths import at_width
from ragen_jax.registry.numbers import Number
from ragen_jax.types import Images, Params, TokenSpan

# Parameters of the policy and of the critic (None without one) that are trained.
TrainedParams = tuple[Params, Params | None]
# Those, and the frozen ones beside them (None where there are none).
AllParams = tuple[TrainedParams, Params | None]
# Tokens, mask of trained tokens, lengths of first messages (None where not shared).
Rows = tuple[Int[Array, "B T"], Bool[Array, "B T"], Int[Array, " B"] | None]


@dataclasses.dataclass(frozen=True)
class Passes:
    """Passes of the policy, the reference and the critic over rows.

    Attributes:
      policy: the network that is trained, with adapters or without.
      policy_params: (trained parameters, frozen parameters) -> those that it takes.
      reference: the network of the frozen parameters, those the policy started with.
      critic: None where the estimator reads no values.
      mesh: rows are split over it.
      trained_shardings: where gradients live.
      table_shardings: of trained and of frozen parameters while they are read, see
        `gather_vocab_tables`; those of frozen ones are None where there are none.
      microbatch_rows: rows per pass.
      num_widths: widths at which a pass may run, see `models.widths`. With more than
        one, rows of similar lengths share a pass.
      temperature, logprob_chunk_tokens: see `token_log_probs`.
      objective: the loss.
      prompts: the first messages that groups share. Rows are then of whole groups, and
        a pass reads each message once. None: rows are read from their first token on.
      images: those that tokens name; None: they name none.
    """

    policy: Policy
    policy_params: Callable[[Params, Params | None], Params]
    reference: Policy
    critic: Critic | None
    mesh: Mesh
    trained_shardings: PyTree
    table_shardings: tuple[PyTree, PyTree | None]
    microbatch_rows: int
    num_widths: int
    temperature: Number
    logprob_chunk_tokens: int
    objective: Objective
    prompts: SharedPrompts | None = None
    images: Images | None = None

    def shown(self, images: Images | None) -> "Passes":
        """The passes over rows whose tokens name these images."""
        return dataclasses.replace(self, images=images)

    def token_stats(
        self,
        params: AllParams,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"],
        sample_log_probs: Float[Array, "B T"],
        kept: Bool[Array, " B"],
        message_lengths: Int[Array, " B"] | None = None,
    ) -> TokenStats:
        """The numbers that later steps are compared with; only those that are needed.

        Args:
          params: trained, and frozen ones where anything needs them.
          tokens: of all rows.
          mask: tokens whose log-probabilities are needed; the others' are 0.
          sample_log_probs: the sampler's, which may be the old log-probabilities.
          kept: rows to read; the others' numbers are 0.
          message_lengths: of the rows' first messages, where those are shared.
        """
        rows = tokens, mask, message_lengths
        # The sampler's log-probabilities cost nothing; each of the others is a pass.
        old, ref, values = sample_log_probs, None, None
        trained, frozen = constrained(params, self.table_shardings)
        policy_params = self.policy_params(trained[0], frozen)
        if self.objective.old_log_probs == "learner":
            old = self.over_rows(
                lambda *part: self._log_probs(self.policy, policy_params, *part)[0],
                rows,
                kept,
            )
        if self.objective.kl_penalty.placement is not None:
            ref = self.over_rows(
                lambda *part: self._log_probs(self.reference, frozen, *part)[0],
                rows,
                kept,
            )
        if self.critic is not None:
            values = self.over_rows(
                lambda *part: self._values(trained, frozen, *part), rows, kept
            )
        return TokenStats(old_log_probs=old, ref_log_probs=ref, values=values)

    def entropies(
        self,
        params: AllParams,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"],
        message_lengths: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T"]:
        """The policy's entropy at every token of the mask, 0 elsewhere."""
        all_rows = jnp.ones(tokens.shape[0], bool)
        trained, frozen = constrained(params, self.table_shardings)
        policy_params = self.policy_params(trained[0], frozen)
        return self.over_rows(
            lambda *part: self._log_probs(self.policy, policy_params, *part)[1],
            (tokens, mask, message_lengths),
            all_rows,
        )

    def gradient(
        self,
        trained: TrainedParams,
        frozen: Params | None,
        samples: Samples,
        rows: Int[Array, " M"],
        kl_coeff: Float[Array, ""],
    ) -> tuple[TrainedParams, TokenSums]:
        """Gradient of a minibatch's loss, and its sums.

        Args:
          trained: parameters the gradient is taken with respect to.
          frozen: parameters that stay, where anything needs them.
          samples: of all rows.
          rows: the minibatch, index `B` for no row; rows come before those.
          kl_coeff: weight of the KL penalty.
        """
        rows = self._by_length(rows, samples)
        # In microbatches before they are taken: a device receives its own rows alone.
        taken = self._take(samples, rows.reshape(-1, self.microbatch_rows))
        taken = self._split_microbatches(taken)
        # Of the whole minibatch: the shares of microbatches then add up to its loss.
        mask = taken.mask.reshape(rows.shape[0], -1)
        weights = self.objective.token_weights(mask).reshape(taken.mask.shape)
        batches = taken, self._split_microbatches(weights)
        # Rows come first: later microbatches hold none.
        is_row = rows < samples.tokens.shape[0]
        count = -(-jnp.sum(is_row) // self.microbatch_rows)

        def of_copy(whole, batches):
            grads, sums = self._accumulate(whole, batches)
            return jax.lax.psum(grads, "data"), sums.over("data")

        accumulate = self._accumulate
        if copies_compute_apart(self.mesh):
            accumulate = on_each_copy(of_copy, self.mesh)
        whole = trained, frozen, kl_coeff, count, self.images
        grads, sums = accumulate(whole, batches)
        return jax.lax.with_sharding_constraint(grads, self.trained_shardings), sums

    def _accumulate(
        self,
        whole: tuple[
            TrainedParams,
            Params | None,
            Float[Array, ""],
            Int[Array, ""],
            Images | None,
        ],
        batches: tuple[Samples, Float[Array, "n m T"]],
    ) -> tuple[TrainedParams, TokenSums]:
        """Gradients and sums of some microbatches.

        Args:
          whole: trained and frozen parameters, weight of the KL penalty, how many
            microbatches hold rows (these come first), and the images.
          batches: samples and their weights, arrays [n, m, ...].
        """
        trained, frozen, kl_coeff, count, images = whole
        # An argument: a closure's would be another mesh's where copies compute apart.
        shown = self.shown(images)
        frozen = constrained(frozen, self.table_shardings[1])

        def accumulate(mine, predict, sums):
            """Gradient by the networks of `mine` that are not None; and more sums."""
            tables = tuple(
                None if params is None else sharding
                for params, sharding in zip(mine, self.table_shardings[0], strict=True)
            )

            def loss(mine, part, part_weights, prompts):
                mine = constrained(mine, tables)
                now = predict(mine, frozen, part.tokens, part.mask, prompts)
                return self.objective.loss(now, part, part_weights, kl_coeff)

            def microbatch(j, carry):
                grads, sums = carry
                arrays = self._split(jax.tree.map(lambda x: x[j], batches))
                part = arrays[0]
                read = part.tokens, part.mask, part.message_lengths
                prompts, arrays = self._apart(read, arrays)
                new_grads, new_sums = self._at_width(
                    lambda arrays: jax.grad(loss, has_aux=True)(mine, *arrays, prompts),
                    arrays,
                    arrays[0].mask,
                )
                return jax.tree.map(jnp.add, grads, new_grads), sums.plus(new_sums)

            # A zero that depends on the sums: otherwise XLA would fill the arrays of
            # the second loop before the first loop runs, and hold them.
            zero = 0 * sums.num_tokens
            zeros = jax.tree.map(lambda x: jnp.full(x.shape, zero, x.dtype), mine)
            start = (zeros, sums)
            return jax.lax.fori_loop(0, count, microbatch, start)

        policy, critic = trained
        if self.critic is None or self.critic.trunk is None:
            return accumulate(trained, shown._predict, TokenSums.zero())
        # One network at a time: a loop holds the activations of one. The policy, which
        # needs more, before the critic's gradient is there.
        predict = shown._predict, shown._predict_values
        of_policy, sums = accumulate((policy, None), predict[0], TokenSums.zero())
        of_critic, sums = accumulate((None, critic), predict[1], sums)
        return (of_policy[0], of_critic[1]), sums

    def over_rows(
        self,
        function: Callable[..., Float[Array, "m W"]],
        rows: Rows,
        kept: Bool[Array, " B"],
    ) -> Float[Array, "B T"]:
        """`function` of the kept rows, a microbatch at a time, 0 in the other rows.

        Numbers before a row's first trained token, and after its last one, may be 0.

        Args:
          function: (tokens, mask, prompts or None) -> a number per token.
          rows: all rows.
          kept: rows to read.
        """
        mask = rows[1]
        read = self.whole_groups(kept)
        draws = jnp.zeros(kept.shape)
        if self.num_widths > 1:
            draws = self._lengths(rows[1:]).astype(jnp.float32)
        order = kept_first(read, draws, self.microbatch_rows)

        def microbatch(j, out):
            chosen = self._microbatch(order, j)
            part = jax.tree.map(lambda x: x.at[chosen].get(mode="clip"), rows)
            part_mask = mask.at[chosen].get(mode="fill", fill_value=False)
            prompts, (part, part_mask) = self._apart(part, (part[:2], part_mask))
            width = part_mask.shape[1]

            def cut_function(part):
                numbers = function(*self._split(part), prompts)
                return jnp.pad(numbers, [(0, 0), (0, width - numbers.shape[1])])

            numbers = self._at_width(cut_function, part, part_mask)
            if prompts is not None:
                numbers = self.prompts.put_back(numbers, prompts, mask.shape[1])
            return out.at[chosen].set(numbers, mode="drop")

        count = -(-jnp.sum(read) // self.microbatch_rows)
        start = jnp.zeros(mask.shape, jnp.float32)
        numbers = jax.lax.fori_loop(0, count, microbatch, start)
        if self.prompts is None:
            return numbers
        return jnp.where(kept[:, None], numbers, 0.0)

    def whole_groups(self, kept: Bool[Array, " B"]) -> Bool[Array, " B"]:
        """The kept rows, and those that are read with them."""
        return kept if self.prompts is None else self.prompts.whole_groups(kept)

    def _predict(
        self,
        trained: TrainedParams,
        frozen: Params | None,
        tokens: Int[Array, "m T"],
        mask: Bool[Array, "m T"],
        prompts: TokenSpan | None,
    ) -> Predictions:
        params = self.policy_params(trained[0], frozen)
        hidden = self._hidden(self.policy, params, tokens, prompts)
        log_probs, entropy = self._score(self.policy, params, hidden, tokens, mask)
        values = None
        if self.critic is not None and self.critic.trunk is None:
            values = token_values(self.critic, trained[1], hidden)
        return Predictions(log_probs=log_probs, entropy=entropy, values=values)

    def _predict_values(self, trained, frozen, *part) -> Predictions:
        return Predictions(values=self._values(trained, frozen, *part))

    def _values(
        self,
        trained: TrainedParams,
        frozen: Params | None,
        tokens: Int[Array, "m T"],
        mask: Bool[Array, "m T"],
        prompts: TokenSpan | None,
    ) -> Float[Array, "m T"]:
        del mask
        trunk, params = self.policy, self.policy_params(trained[0], frozen)
        if self.critic.trunk is not None:
            trunk = self.critic.trunk
            params = self.critic.trunk_params(trained[1], frozen)
        hidden = self._hidden(trunk, params, tokens, prompts)
        return token_values(self.critic, trained[1], hidden)

    def _log_probs(
        self,
        policy: Policy,
        params: Params,
        tokens: Int[Array, "m T"],
        mask: Bool[Array, "m T"],
        prompts: TokenSpan | None,
    ):
        hidden = self._hidden(policy, params, tokens, prompts)
        return self._score(policy, params, hidden, tokens, mask)

    def _hidden(
        self,
        trunk: Policy,
        params: Params,
        tokens: Int[Array, "m T"],
        prompts: TokenSpan | None,
    ):
        trunk = trunk.shown(self.images)
        return hidden_states(trunk, params, tokens, by_rows(self.mesh), prompts)

    def _score(
        self,
        policy: Policy,
        params: Params,
        hidden: Float[Array, "m T D"],
        tokens: Int[Array, "m T"],
        mask: Bool[Array, "m T"],
    ):
        chunk_tokens = self.logprob_chunk_tokens // num_row_shards(self.mesh)

        def score(whole, *rows):
            params, temperature = whole
            how = {"temperature": temperature, "chunk_tokens": chunk_tokens}
            return token_log_probs(policy, params, *rows, **how)

        whole = params, self.temperature
        return on_each_device(score, self.mesh)(whole, hidden, tokens, mask)

    def _by_length(self, rows: Int[Array, " M"], samples: Samples) -> Int[Array, " M"]:
        """A minibatch sorted by length; index `B` (not a row) comes last."""
        if self.num_widths == 1:
            return rows
        lengths = self._lengths((samples.mask, samples.message_lengths))
        longer = samples.tokens.shape[1] + 1
        return rows[jnp.argsort(lengths.at[rows].get(mode="fill", fill_value=longer))]

    def _lengths(
        self, rows: tuple[Bool[Array, "B T"], Int[Array, " B"] | None]
    ) -> Int[Array, " B"]:
        """Tokens that a pass must read of each row, of its group where that is read."""
        mask, message_lengths = rows
        lengths = last_place(mask)
        if self.prompts is None:
            return lengths
        return self.prompts.longest(jnp.maximum(lengths - message_lengths, 0))

    def _apart(
        self, rows: Rows, arrays: PyTree[Shaped[Array, "m ..."]]
    ) -> tuple[TokenSpan | None, PyTree[Shaped[Array, "m ..."]]]:
        """Prompts of a microbatch, if they are shared, and its arrays without them."""
        if self.prompts is None:
            return None, arrays
        prompts = self.prompts.read(*rows)
        return self._split((prompts, self.prompts.cut(arrays, prompts)))

    def _at_width(self, function: Callable, rows: PyTree, mask: Bool[Array, "m T"]):
        """`function` of rows, cut after the last token of any mask."""
        return at_width(
            function,
            rows,
            last_place(mask),
            longest=mask.shape[1],
            count=self.num_widths,
        )

    def _microbatch(self, rows, j):
        first = j * self.microbatch_rows
        return jax.lax.dynamic_slice_in_dim(rows, first, self.microbatch_rows)

    def _take(self, samples: Samples, rows: Int[Array, "n m"]) -> Samples:
        """Some rows; index `B` is a row without trained tokens."""
        is_row = rows < samples.tokens.shape[0]
        # Index `B` is clipped to the last row: its copy is masked.
        taken = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), samples)
        return taken.replace(mask=taken.mask & is_row[..., None])

    def _split_microbatches(self, tree: PyTree[Shaped[Array, "n m ..."]]) -> PyTree:
        split = NamedSharding(self.mesh, PartitionSpec(None, *by_rows(self.mesh).spec))
        return jax.lax.with_sharding_constraint(tree, split)

    def _split(self, tree):
        return jax.lax.with_sharding_constraint(tree, by_rows(self.mesh))


def last_place(mask: Bool[Array, "B T"]) -> Int[Array, " B"]:
    """Tokens up to the last one of each row's mask; 0 without one."""
    places = jnp.arange(1, mask.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(mask, places, 0), axis=1)


def kept_first(
    kept: Bool[Array, " B"], draws: Float[Array, " B"], multiple: int
) -> Int[Array, " P"]:
    """Kept rows by their draws, then `B` (no row) up to a multiple of `multiple`."""
    num_rows = kept.shape[0]
    draws = jnp.where(kept, draws, jnp.inf)
    order = jnp.argsort(draws, stable=True).astype(jnp.int32)
    is_row = jnp.arange(num_rows) < jnp.sum(kept)
    order = jnp.where(is_row, order, num_rows)
    return jnp.pad(order, (0, -num_rows % multiple), constant_values=num_rows)
