"""Shape and constants of a Qwen-2.5 model, read from and written as `config.json`.

What transformers knows and we do not implement is refused here, so that nothing later
can silently compute a different network.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

# What transformers' Qwen2Config assumes where a key is absent.
HF_DEFAULTS = {
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32_768,
    "initializer_range": 0.02,
}
# Never assumed: a wrong guess would still load.
REQUIRED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


@dataclasses.dataclass(frozen=True)
class Qwen2Config:
    """Names are those of `config.json`; every size is a positive integer.

    Attributes:
      vocab_size: `V`, rows of the embedding; may exceed the tokenizer's own vocabulary.
      hidden_size: `D`.
      intermediate_size: width of the gated MLP.
      num_hidden_layers: `L`.
      num_attention_heads: `H`.
      num_key_value_heads: `J`, divides `H`.
      head_dim: `F`, even; usually `D / H`.
      rope_theta: base of the rotary wavelengths.
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

    def __post_init__(self):
        sizes = (*REQUIRED_SIZES, "head_dim", "max_position_embeddings")
        fields = dataclasses.asdict(self)
        for name in sizes:
            value = fields[name]
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} = {value!r} must be a positive integer")
        for name in ("rope_theta", "rms_norm_eps", "initializer_range"):
            value = fields[name]
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name} = {value!r} must be a number")
            if value <= 0:
                raise ValueError(f"{name} = {value!r} must be positive")
        if not isinstance(self.tie_word_embeddings, bool):
            raise ValueError(
                f"tie_word_embeddings = {self.tie_word_embeddings!r} must be true or "
                "false"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} must be a multiple "
                f"of num_key_value_heads = {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim = {self.head_dim} must be even: rotary embeddings turn pairs"
            )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "Qwen2Config":
        """Config of a parsed `config.json` (transformers 4 or 5).

        Raises:
          ValueError: a size is absent or impossible, or the model needs something that
            is not implemented here.
        """
        _refuse_other_models(hf)
        missing = [name for name in REQUIRED_SIZES if name not in hf]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        fields = {name: hf[name] for name in REQUIRED_SIZES}
        fields |= {name: hf.get(name, value) for name, value in HF_DEFAULTS.items()}
        fields["rope_theta"] = _rope_theta(hf)
        head_dim = hf.get("head_dim")
        return cls(
            **fields,
            head_dim=_default_head_dim(hf) if head_dim is None else head_dim,
            eos_token_ids=token_ids(hf.get("eos_token_id")),
            bos_token_id=hf.get("bos_token_id"),
            pad_token_id=hf.get("pad_token_id"),
        )

    def to_hf(self) -> dict[str, Any]:
        """Contents of `config.json`, readable by transformers 4 and 5 and by vLLM."""
        fields = dataclasses.asdict(self)
        ids = fields.pop("eos_token_ids")
        if self.head_dim * self.num_attention_heads == self.hidden_size:
            del fields["head_dim"]  # the published Qwen-2.5 configs have no such key
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_cache": True,
            "use_sliding_window": False,
            **{name: value for name, value in fields.items() if value is not None},
            **({"eos_token_id": ids[0] if len(ids) == 1 else list(ids)} if ids else {}),
        }


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """Token ids that Hugging Face files write as one number, a list or null."""
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ValueError(f"eos_token_id = {value!r} must be token ids (integers >= 0)")
    return ids


def _default_head_dim(hf: Mapping[str, Any]) -> int:
    width, heads = hf["hidden_size"], hf["num_attention_heads"]
    if not (isinstance(width, int) and isinstance(heads, int) and heads > 0):
        raise ValueError(
            f"hidden_size = {width!r} and num_attention_heads = {heads!r} must be "
            "positive integers"
        )
    if width % heads:
        raise ValueError(
            f"hidden_size = {width} is no multiple of num_attention_heads = {heads} "
            "and config.json has no head_dim"
        )
    return width // heads


def _rope_theta(hf: Mapping[str, Any]) -> float:
    """Rotary base: `rope_theta` (transformers 4) or `rope_parameters` (5)."""
    rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(
            f"rope scaling {kind!r} is not implemented; use a checkpoint whose "
            "rope_type is 'default'"
        )
    top = hf.get("rope_theta", HF_DEFAULTS["rope_theta"])
    return rope.get("rope_theta", top)


def _refuse_other_models(hf: Mapping[str, Any]) -> None:
    """Raises ValueError for whatever `Qwen2` would compute differently."""
    if hf.get("model_type") != "qwen2":
        raise ValueError(
            f"model_type = {hf.get('model_type')!r} is not implemented; only 'qwen2' "
            "(Qwen-2 and Qwen-2.5) is"
        )
    if hf.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"hidden_act = {hf['hidden_act']!r} is not implemented; only 'silu' is"
        )
    kinds = set(hf.get("layer_types") or ["full_attention"])
    if hf.get("use_sliding_window") or kinds != {"full_attention"}:
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
