"""Small tokenizers trained on the spot, in Hugging Face layout."""

import json
import pathlib

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

# Qwen-2.5's, from its released tokenizer.json: contractions, words with the character
# before them, single digits, punctuation with its line ends, line ends, blanks.
QWEN_BORDERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# ChatML, written for the tests.
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3_TOKENS = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>"),
)
# As shipped with Meta-Llama-3-Instruct, which trims contents.
LLAMA3_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Runs of symbols, so that merges across cells are learned, and some prose.
CORPUS = (
    *["######\n#____#\n##X__#\n#_OP_#\n#__√S#\n######\n"] * 40,
    *["____\n_OG_\nP___\n__O√\n", "WWWWWW\nW..GBW\nWA@.CW\nWW..GW\n"] * 30,
    *["Targets: (1, 2), (3, 4)\nBoxes: (2, 2)\nPlayer: (4, 1)\n"] * 20,
    *["State:\n\nTurn 12\n\nActions left: 10.\n", "Reward: -0.1\n", " || "] * 20,
    *["Your options are Anchor or Rocket. Your last reply held no valid action.\n"] * 9,
    *["<think>go up</think><answer>Up || Down || Left || Right</answer>"] * 20,
)


def train_qwen_style(folder: pathlib.Path, **settings) -> pathlib.Path:
    """A byte-level BPE on Qwen's pre-tokenizer with ChatML's special tokens."""
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_BORDERS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _train(folder, cut, **settings)


def train_uncut(folder: pathlib.Path, **settings) -> pathlib.Path:
    """A byte-level BPE without borders: it merges across line ends and words."""
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _train(folder, cut, **settings)


def _train(
    folder: pathlib.Path,
    cut: pre_tokenizers.PreTokenizer,
    *,
    vocab_size: int = 600,
    texts: tuple[str, ...] = (),
    plain_tokens: tuple[str, ...] = (),
    stop_tokens: list[str] | None = None,
    is_llama: bool = False,
) -> pathlib.Path:
    """Writes tokenizer.json, tokenizer_config.json and, with stop tokens,
    generation_config.json. `texts` is read besides the corpus; `plain_tokens` are added
    tokens that are not special; `is_llama`: Llama 3's special tokens, not ChatML's."""
    special = LLAMA3_TOKENS if is_llama else SPECIAL_TOKENS
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, *(texts * 40)], trainer)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in special]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=False) for t in plain_tokens]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    if is_llama:
        settings |= {"bos_token": special[0], "eos_token": special[-1]}
        settings["chat_template"] = LLAMA3_TEMPLATE
    _write(folder / "tokenizer_config.json", settings)
    if stop_tokens is not None:
        ids = [tokenizer.token_to_id(token) for token in stop_tokens]
        _write(folder / "generation_config.json", {"eos_token_id": ids})
    return folder


def _write(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
