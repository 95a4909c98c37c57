"""Description of a model: its sizes and constants, read from and written as
`config.json`.

`ModelConfig` is the only description of a model that the rest of the program reads. A
family of models (`models/families.py`) is a subclass with the
properties of its layers and the keys of its `config.json`. Networks that transformers
computes and this package does not are refused here, so that nothing later computes a
different network without notice.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

# Defaults of transformers for absent keys, but for what a family says.
HF_DEFAULTS = {
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32_768,
    "initializer_range": 0.02,
}
# Required keys: a wrong guess would still load.
REQUIRED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
# Far above any published model. Describing a network takes time for every layer, and
# numbers of parameters must fit into 64 bits.
MAX_LAYERS, MAX_SIZE = 1_000, 2**31 - 1
# Bounds (lowest, highest) of constants. Outside of them float32 arithmetic overflows or
# rounds to zero; published models have 1e4 to 1e7, 1e-6 to 1e-5 and 0.02.
BOUNDS = {
    "rope_theta": (1.0, 1e12),
    "rms_norm_eps": (1e-12, 1.0),
    "initializer_range": (1e-12, 100.0),
}
# Keys of `rope_parameters` or `rope_scaling` that plain rotary embeddings may have.
ROPE_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclasses.dataclass(frozen=True)
class Llama3Rope:
    """Slower rotations, for contexts beyond those of the first training (Llama 3.1).

    Names are those of `config.json`; the formula is in `attention.py`.

    Attributes:
      factor: by which long wavelengths grow.
      low_freq_factor: wavelengths above the original context / this are long.
      high_freq_factor: wavelengths below the original context / this stay.
      original_max_position_embeddings: context of the first training, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value <= MAX_SIZE:
                raise ValueError(
                    f"rope scaling 'llama3' has {name} = {value!r}; it must be a "
                    f"number between 0 and {MAX_SIZE}"
                )
        if not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope scaling 'llama3' has low_freq_factor = {self.low_freq_factor}, "
                f"which must be below high_freq_factor = {self.high_freq_factor}"
            )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a model; names are those of `config.json`.

    Attributes:
      vocab_size: `V`, rows of the embedding; may exceed the tokenizer's vocabulary.
      hidden_size: `D`.
      intermediate_size: width of the gated MLP.
      num_hidden_layers: `L`.
      num_attention_heads: `H`.
      num_key_value_heads: `J`, divides `H`.
      head_dim: `F`, even; often `D / H`.
      rope_theta: base of the rotary wavelengths.
      rope_scaling: how they are changed; None: not at all.
      rms_norm_eps: added to the mean square before the root.
      tie_word_embeddings: the output head is the transposed embedding.
      max_position_embeddings: longest context of the pre-training, in tokens.
      initializer_range: standard deviation of freshly made weights.
      eos_token_ids: tokens that end a reply, as the checkpoint states them.
      bos_token_id: kept for export only.
      pad_token_id: kept for export only; masks never come from token values.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    rope_scaling: Llama3Rope | None = None

    # Of a family: its `model_type` and transformers' name of the network, whether q, k
    # and v have a bias, whether each head of q and k is normalized before it is
    # rotated, and whether the network sees pictures.
    model_type: ClassVar[str]
    architecture: ClassVar[str]
    qkv_bias: ClassVar[bool]
    qk_norm: ClassVar[bool]
    sees: ClassVar[bool] = False
    # Keys and values that this family's `config.json` has beside those above. A file
    # may leave them out; another value is refused.
    hf_constants: ClassVar[Mapping[str, Any]] = {}
    # Values of keys that `config.json` may leave out.
    hf_defaults: ClassVar[Mapping[str, Any]] = HF_DEFAULTS
    # `head_dim` where `config.json` has none. None: `D / H`, and not written then.
    default_head_dim: ClassVar[int | None] = None

    def __post_init__(self):
        self._check_sizes()
        self._check_constants()
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} must be a multiple "
                f"of num_key_value_heads = {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim = {self.head_dim} must be even: rotary embeddings use pairs"
            )
        outside = [i for i in self.eos_token_ids if i >= self.vocab_size]
        if outside:
            raise ValueError(
                f"eos_token_id = {outside[0]} is outside the vocabulary of "
                f"{self.vocab_size} tokens, so no reply could end with it"
            )

    def _check_sizes(self) -> None:
        sizes = (*REQUIRED_SIZES, "head_dim", "max_position_embeddings")
        for name in sizes:
            value = getattr(self, name)
            if not _is_integer(value) or value <= 0:
                raise ValueError(f"{name} = {value!r} must be a positive integer")
            highest = MAX_LAYERS if name == "num_hidden_layers" else MAX_SIZE
            if value > highest:
                raise ValueError(f"{name} = {value} must be at most {highest}")
        for name in ("bos_token_id", "pad_token_id"):
            value = getattr(self, name)
            if value is not None and not _is_integer(value):
                raise ValueError(f"{name} = {value!r} must be a token id or null")

    def _check_constants(self) -> None:
        for name, (lowest, highest) in BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name} = {value!r} must be a number")
            if not lowest <= value <= highest:  # nan is not
                raise ValueError(
                    f"{name} = {value!r} must be between {lowest:g} and {highest:g}"
                )
        if not isinstance(self.tie_word_embeddings, bool):
            raise ValueError(
                f"tie_word_embeddings = {self.tie_word_embeddings!r} must be true or "
                "false"
            )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "ModelConfig":
        """Config of a parsed `config.json` of this family (transformers 4 or 5).

        Raises:
          ValueError: a size is absent or impossible, or the model needs something that
            is not implemented here.
        """
        own = cls._own_fields(hf)
        hf = cls._text_keys(hf)
        _refuse_other_networks(hf)
        cls._refuse_other_constants(hf)
        missing = [name for name in REQUIRED_SIZES if name not in hf]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        fields = {name: hf[name] for name in REQUIRED_SIZES}
        fields |= {name: hf.get(name, value) for name, value in cls.hf_defaults.items()}
        fields["rope_theta"], fields["rope_scaling"] = _rope(hf)
        head_dim = hf.get("head_dim")
        return cls(
            **fields,
            head_dim=cls._default_head_dim(hf) if head_dim is None else head_dim,
            eos_token_ids=token_ids(hf.get("eos_token_id")),
            bos_token_id=hf.get("bos_token_id"),
            pad_token_id=hf.get("pad_token_id"),
            **own,
        )

    @classmethod
    def _own_fields(cls, hf: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that only this family has."""
        return {}

    @classmethod
    def _text_keys(cls, hf: Mapping[str, Any]) -> Mapping[str, Any]:
        """The keys that describe the decoder, where a file has others, too."""
        return hf

    def to_hf(self) -> dict[str, Any]:
        """Contents of `config.json`, readable by transformers 4 and 5 and by vLLM."""
        fields = dataclasses.asdict(self)
        ids = fields.pop("eos_token_ids")
        is_usual = self.head_dim * self.num_attention_heads == self.hidden_size
        if is_usual and self.default_head_dim is None:
            del fields["head_dim"]
        if self.rope_scaling is not None:
            fields["rope_scaling"]["rope_type"] = "llama3"
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_cache": True,
            **self.hf_constants,
            **{name: value for name, value in fields.items() if value is not None},
            **({"eos_token_id": ids[0] if len(ids) == 1 else list(ids)} if ids else {}),
        }

    @classmethod
    def _default_head_dim(cls, hf: Mapping[str, Any]) -> int:
        if cls.default_head_dim is not None:
            return cls.default_head_dim
        width, heads = hf["hidden_size"], hf["num_attention_heads"]
        if not (_is_integer(width) and _is_integer(heads) and heads > 0):
            raise ValueError(
                f"hidden_size = {width!r} and num_attention_heads = {heads!r} must be "
                "positive integers"
            )
        if width % heads:
            raise ValueError(
                f"hidden_size = {width} is not a multiple of num_attention_heads = "
                f"{heads} and config.json has no head_dim"
            )
        return width // heads

    @classmethod
    def _refuse_other_constants(cls, hf: Mapping[str, Any]) -> None:
        for name, value in cls.hf_constants.items():
            given = hf.get(name)
            if given is not None and given != value:
                raise ValueError(
                    f"{name} = {given!r} is not implemented for "
                    f"{cls.model_type!r}; only {value!r} is"
                )


def token_ids(value: Any) -> tuple[int, ...]:
    """Token ids that Hugging Face files write as one number, a list or null.

    Raises:
      ValueError: the value is anything else.
    """
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not all(_is_integer(i) and i >= 0 for i in ids):
        raise ValueError(f"eos_token_id = {value!r} must be token ids (integers >= 0)")
    return ids


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rope(hf: Mapping[str, Any]) -> tuple[Any, Llama3Rope | None]:
    """Rotary base and scaling: `rope_scaling` and a key (transformers 4), or
    `rope_parameters` (5)."""
    rope = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = hf.get(name)
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{name} = {value!r} must be an object or null")
        rope |= value or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(
            f"rope scaling {kind!r} is not implemented; use a checkpoint whose "
            "rope_type is 'default' or 'llama3'"
        )
    for value in (hf.get("partial_rotary_factor"), rope.get("partial_rotary_factor")):
        if value is not None and value != 1:
            raise ValueError(
                f"partial_rotary_factor = {value!r} is not implemented; only 1 is: "
                "every dimension of a head is rotated"
            )
    scaled = {field.name for field in dataclasses.fields(Llama3Rope)}
    scaled = scaled if kind == "llama3" else set()
    unknown = sorted(rope.keys() - ROPE_KEYS - scaled)
    if unknown:
        raise ValueError(
            f"rope_parameters hold {unknown[0]!r}, which is not implemented with "
            f"rope_type {kind!r}"
        )
    missing = sorted(scaled - rope.keys())
    if missing:
        raise ValueError(f"rope scaling 'llama3' lacks {missing[0]}")
    theta = rope.get("rope_theta", hf.get("rope_theta", HF_DEFAULTS["rope_theta"]))
    if not scaled:
        return theta, None
    return theta, Llama3Rope(**{name: rope[name] for name in scaled})


def _refuse_other_networks(hf: Mapping[str, Any]) -> None:
    if hf.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"hidden_act = {hf['hidden_act']!r} is not implemented; only 'silu' is"
        )
    kinds = hf.get("layer_types")
    is_full = kinds is None or (
        isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
    )
    if hf.get("use_sliding_window") or not is_full:
        raise ValueError(
            "sliding-window attention is not implemented; use a checkpoint with "
            "use_sliding_window = false and full_attention in every layer"
        )
    if hf.get("attention_dropout"):
        raise ValueError(
            f"attention_dropout = {hf['attention_dropout']!r} is not implemented; "
            "only 0 is"
        )
    if hf.get("quantization_config"):
        raise ValueError(
            "quantized checkpoints are not implemented; use float32, float16 or "
            "bfloat16 weights"
        )
