"""Low-rank adapters: a frozen network and a small trainable change to it.

In: a network's shape and which of its matrices may change. Out: a `Policy` whose
parameters are `{"base": params, "adapters": adapters}`, where `base` is a plain
parameter tree. The base is never copied or changed, so that several sets of adapters
(actor, critic) and the reference policy can share it. The caller chooses which of the
two is differentiated; this file knows nothing of optimizers.

Source: LoRA, arXiv 2106.09685, in the conventions of Hugging Face PEFT: a kernel `W`
acts as `W + a @ b * alpha / rank`.

Why not `qwix` (0.1.8): its LoRA patches `jax.lax.dot_general` while the network runs,
and creates the adapters during a first run on real arrays, next to the kernels. On
these modules and JAX 0.10 that works only with its `disable_jit`; shardings come from
arrays, not from logical axes; and merging is left to the user. Here an adapter is two
lines in `Linear`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Key

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import build_network
from ragen_jax.models.layers import Linear
from ragen_jax.models.policy import Policy, axes_of, build_policy, sight_options
from ragen_jax.models.vision_config import ShownPictures
from ragen_jax.types import Params

# Every matrix of a layer, by the names of the checkpoint (PEFT's "all-linear"). The
# embedding and the output head are never adapted.
LINEAR_NAMES = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
ALL = "all"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Size and place of the adapters.

    Attributes:
      rank: columns of `lora_a` and rows of `lora_b`.
      alpha: the change is multiplied by `alpha / rank`.
      targets: "all", or names out of `LINEAR_NAMES`; the same in every layer.
    """

    rank: int = 64
    alpha: float = 64.0
    targets: str | tuple[str, ...] = ALL

    def __post_init__(self):
        rank, alpha, targets = self.rank, self.alpha, self.targets
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise ValueError(
                f"lora rank = {rank!r} must be an integer of at least 1; to train "
                "without adapters use build_policy"
            )
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
        if not is_number or not 0 < alpha < math.inf:
            raise ValueError(f"lora alpha = {alpha!r} must be a positive number")
        if targets == ALL:
            return
        choices = f"{ALL!r} or a tuple of names out of {', '.join(LINEAR_NAMES)}"
        if not isinstance(targets, tuple) or not targets:
            raise ValueError(f"lora targets = {targets!r} must be {choices}")
        unknown = [name for name in targets if name not in LINEAR_NAMES]
        if unknown:
            raise ValueError(f"lora.targets holds {unknown[0]!r}; use {choices}")
        if len(set(targets)) != len(targets):
            raise ValueError(f"lora targets = {targets!r} names a matrix twice")

    @property
    def names(self) -> tuple[str, ...]:
        return LINEAR_NAMES if self.targets == ALL else self.targets

    @property
    def scale(self) -> float:
        """`alpha / rank`, the factor of the product of an adapter's matrices.

        Section 4.1 of the paper: alpha then acts about like the learning rate, and need
        not be tuned again for another rank.
        """
        return self.alpha / self.rank


def read_lora(*, rank: int | None, alpha: float, targets: str) -> LoraConfig | None:
    """Adapters by the section `lora` of a configuration; None if its rank is None.

    Args:
      targets: "all", or names separated by commas.
    """
    if rank is None:
        return None
    return LoraConfig(
        rank, alpha, targets if targets == ALL else tuple(targets.split(","))
    )


@dataclasses.dataclass(frozen=True, eq=False)
class LoraPolicy(Policy):
    """A `Policy` whose parameters are `{"base": params, "adapters": adapters}`.

    `forward`, `logits` and `cast_params` take that pair; the base alone is the
    parameter tree of `build_policy(config)`. To train the adapters, differentiate with
    respect to them alone: `grad(lambda adapters: loss({"base": base, "adapters":
    adapters}))` computes no gradient of any matrix of the base.

    Attributes:
      lora: size and place of the adapters.
      init_adapters: key -> fresh adapters, float32, which change nothing yet.
      merge: (base, adapters) -> params of the plain policy, in the base's dtype:
        for export, and for sampling at the plain model's speed.
    """

    lora: LoraConfig
    init_adapters: Callable[[Array], Params]
    merge: Callable[[Params, Params], Params]


def build_lora_policy(
    config: ModelConfig,
    *,
    lora: LoraConfig,
    dtype="float32",
    remat: str | None = None,
    attention: str = "blocks",
    num_ids: int | None = None,
    pictures: tuple[ShownPictures, ...] = (),
    freeze_tower: bool = False,
) -> LoraPolicy:
    """The pure functions of an adapted network of this shape.

    Args:
      config: the network's shape.
      lora: size and place of the adapters.
      dtype, remat, attention, num_ids, pictures, freeze_tower: see `build_policy`.

    The functions raise ValueError for adapters made for another config.
    """
    how = {"dtype": dtype, "remat": remat, "attention": attention}
    shown = {"pictures": pictures, "freeze_tower": freeze_tower}
    plain = build_policy(config, **how, num_ids=num_ids, **shown)
    network = _abstract_network(config, lora, **shown, **how)
    graphdef, variables, _ = nnx.split(network, nnx.LoRAParam, ...)
    expected = nnx.to_pure_dict(variables)
    init_fresh = functools.partial(_init_adapters, expected)

    def init(key: Key[Array, ""]) -> Params:
        base_key, adapters_key = jax.random.split(key)
        return {"base": plain.init(base_key), "adapters": init_fresh(adapters_key)}

    def put_together(params: Params) -> nnx.Module:
        _check_adapters(params["adapters"], expected)
        params = jax.tree.map(jnp.asarray, params)
        return nnx.merge(graphdef, params["adapters"], params["base"])

    def forward(params, tokens, positions, cache, sight=None):
        return put_together(params)(tokens, positions, cache, sight)

    def look(params, tokens, images=None):
        return put_together(params).look(tokens, images) if pictures else None

    def logits(params, hidden):
        return plain.logits(params["base"], hidden)

    def merge(base: Params, adapters: Params) -> Params:
        _check_adapters(adapters, expected)
        return _merge(base, adapters, lora.scale)

    return LoraPolicy(
        config=config,
        dtype=plain.dtype,
        remat=plain.remat,
        attention=plain.attention,
        num_ids=num_ids,
        **shown,
        shapes={"base": plain.shapes, "adapters": expected},
        logical_axes={"base": plain.logical_axes, "adapters": axes_of(variables)},
        init=init,
        forward=forward,
        see=lambda params, pictures: put_together(params).see(pictures),
        look=look,
        logits=logits,
        cast_params=plain.cast_params,
        lora=lora,
        init_adapters=init_fresh,
        merge=merge,
    )


def abstract_adapters(config: ModelConfig, lora: LoraConfig) -> Params:
    """The tree of the adapters, as `jax.ShapeDtypeStruct`s.

    At the place of each adapted matrix [in, out] of the plain tree it has `lora_a`
    [in, rank] and `lora_b` [rank, out].
    """
    return nnx.to_pure_dict(_abstract_state(config, lora))


def adapter_axes(config: ModelConfig, lora: LoraConfig) -> Params:
    """The adapters' tree with a tuple of axis names per array, as `logical_axes`.

    `lora_a` is split as its kernel's input, `lora_b` as its output; the axis "rank" is
    to be whole everywhere.
    """
    return axes_of(_abstract_state(config, lora))


def _abstract_network(
    config: ModelConfig,
    lora: LoraConfig,
    *,
    pictures: tuple[ShownPictures, ...] = (),
    freeze_tower: bool = False,
    dtype="float32",
    remat: str | None = None,
    attention: str = "blocks",
) -> nnx.Module:
    shown = sight_options(pictures, freeze_tower)

    def make() -> nnx.Module:
        network = build_network(
            config,
            dtype=jnp.dtype(dtype),
            remat=remat,
            attention=attention,
            **shown,
            rngs=nnx.Rngs(params=0),
        )
        for path, module in nnx.iter_modules(network):
            if isinstance(module, Linear) and path[-1] in lora.names:
                module.add_adapter(lora.rank, lora.scale)
        return network

    return nnx.eval_shape(make)


def _abstract_state(config: ModelConfig, lora: LoraConfig) -> nnx.State:
    network = _abstract_network(config, lora)
    return nnx.state(network, nnx.LoRAParam)


def _init_adapters(expected: Params, key: Key[Array, ""]) -> Params:
    """Normal `lora_a` of variance 1 / (3 in), zero `lora_b`.

    The paper draws `a` from a Gaussian and does not say how wide. The variance is that
    of PEFT's default (uniform in +-1/sqrt(in)), which RAGEN trains with; other than
    PEFT's own Gaussian (1/rank) it keeps `x @ a` of one size for all ranks and widths.
    """
    leaves, structure = jax.tree.flatten_with_path(expected)
    keys = jax.random.split(key, len(leaves))

    def draw(path, shape, key) -> Array:
        if path[-1].key == "lora_b":
            return jnp.zeros(shape)
        return jax.random.normal(key, shape) / math.sqrt(3 * shape[0])

    drawn = [
        draw(path, leaf.shape, key)
        for (path, leaf), key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def _merge(base: Params, adapters: Params, scale: float) -> Params:
    """The base with `kernel + lora_a @ lora_b * scale` in place of adapted kernels.

    Summed in float32, at full precision on every device, then in the kernel's dtype.
    """
    merged = dict(base)
    for name, below in adapters.items():
        if "lora_a" not in below:
            merged[name] = _merge(base[name], below, scale)
            continue
        kernel = base[name]["kernel"]
        a, b = (jnp.asarray(below[x], jnp.float32) for x in ("lora_a", "lora_b"))
        change = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST) * scale
        summed = jnp.asarray(kernel, jnp.float32) + change
        merged[name] = base[name] | {"kernel": summed.astype(kernel.dtype)}
    return merged


def _check_adapters(adapters: Params, expected: Params) -> None:
    given, wanted = (
        {
            jax.tree_util.keystr(path): x.shape
            for path, x in jax.tree.leaves_with_path(t)
        }
        for t in (adapters, expected)
    )
    for path in sorted(given.keys() ^ wanted.keys()):
        problem = "lack" if path in wanted else "hold the unexpected"
        raise ValueError(
            f"the adapters {problem} {path}; use the lora targets they were made with"
        )
    for path, shape in wanted.items():
        if given[path] != shape:
            raise ValueError(
                f"adapter {path} has shape {given[path]}, not {shape}; use the lora "
                "rank and the network it was made with"
            )
