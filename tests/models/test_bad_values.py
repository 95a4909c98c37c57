"""Files of a checkpoint with the right syntax and the wrong content.

Each mutation either loads or is refused in one sentence that names the file.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ragen_jax.models.hf import files as hf_files
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.text.tokenizer import load_tokenizer
from tests import commands

ODD_VALUES = {
    "null": None,
    "true": True,
    "negative": -1,
    "zero": 0,
    "fraction": 1.5,
    "large": 10**30,
    "almost infinite": 1e308,
    "infinite": float("inf"),
    "nan": float("nan"),
    "empty text": "",
    "text": "x",
    "surrogate": "\ud800",
    "empty list": [],
    "list": [1],
    "nested": [[{}]],
    "empty object": {},
    "object": {"a": 1},
}
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = hf_files.WEIGHTS_FILE, hf_files.INDEX_FILE
INNER_KEYS = 8
# Keys that no fresh folder has, but transformers knows.
MORE_KEYS = {
    CONFIG: (
        *("rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor"),
        *("layer_types", "quantization_config", "attention_bias"),
    ),
    SETTINGS: ("added_tokens_decoder", "chat_template"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with every kind of file: one shard and its index."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    commands.tiny_model(folder)
    # Digests, where they are written, would refuse every change alike.
    (folder / "digests.sha256").unlink(missing_ok=True)
    (folder / WEIGHTS).rename(folder / "part.safetensors")
    names = load_file(folder / "part.safetensors")
    weight_map = dict.fromkeys(names, "part.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))
    load(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def load(folder):
    tokenizer = load_tokenizer(folder)
    config, params = load_checkpoint(folder)
    return tokenizer, config, params


def assert_loads_or_is_refused(folder, name):
    """Returns the sentence, None where the folder loads."""
    try:
        load(folder)
    except ValueError as error:
        message = str(error)
        assert name in message, message
        assert "\n" not in message
        return message
    return None


def mutations(folder, name):
    """(label, content) of every key and odd value, to two levels."""
    content = json.loads((folder / name).read_text())
    for key in (*content, *MORE_KEYS.get(name, ())):
        for label, value in ODD_VALUES.items():
            yield f"{key} = {label}", content | {key: value}
        inner = content.get(key)
        for name_in in [*inner][:INNER_KEYS] if isinstance(inner, dict) else []:
            for label, value in ODD_VALUES.items():
                changed = content | {key: inner | {name_in: value}}
                yield f"{key}.{name_in} = {label}", changed


SLOW_FILES = [
    pytest.param(name, fewest, marks=pytest.mark.slow)
    for name, fewest in ((GENERATION, 15), (INDEX, 15), (SETTINGS, 12), (TOKENIZER, 60))
]


@pytest.mark.parametrize(
    ("name", "fewest"),
    [(CONFIG, 200), *SLOW_FILES],
)
def test_odd_values_load_or_are_one_sentence(name, fewest, folder):
    trials = [*mutations(folder, name)]
    refused = []
    for label, content in trials:
        (folder / name).write_text(json.dumps(content))
        if assert_loads_or_is_refused(folder, name):
            refused.append(label)
    assert fewest <= len(refused) < len(trials)


@pytest.mark.parametrize("name", [CONFIG, GENERATION, INDEX, SETTINGS, TOKENIZER])
def test_random_bytes_load_or_are_one_sentence(name, folder):
    before = (folder / name).read_bytes()
    random = np.random.RandomState(0)
    refused = 0
    for _ in range(40):
        content = bytearray(before)
        at = random.randint(len(content))
        content[at : at + random.randint(4)] = random.bytes(random.randint(4))
        (folder / name).write_bytes(content)
        refused += assert_loads_or_is_refused(folder, name) is not None
    assert refused > 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_theta", float("nan")),
        ("rope_theta", float("inf")),
        ("rope_theta", 1e308),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", 1e308),
    ],
)
@pytest.mark.parametrize("spelled", ["as Python does", "as a number too large"])
def test_constants_must_be_finite(key, value, spelled, folder):
    hf = json.loads((folder / CONFIG).read_text()) | {key: value}
    text = json.dumps(hf)
    if spelled == "as a number too large":
        text = text.replace("Infinity", "1e999").replace("NaN", "1e400")
    (folder / CONFIG).write_text(text)
    with pytest.raises(
        ValueError, match=rf"config.json(: {key} = | is not valid JSON)"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eos_token_id": 384}, "eos_token_id = 384 is outside the vocabulary of 384"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not impl"),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "partial_rotary_factor": 0.25,
                }
            },
            "partial_rotary_factor = 0.25",
        ),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [4]}}, "scaling 'mrope'"),
        (
            {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
            "'mrope_section', which is not implemented",
        ),
        ({"rope_parameters": {"rope_type": "surprise"}}, "rope scaling 'surprise'"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers = 1000000000 must be at most",
        ),
        ({"bos_token_id": "x"}, "bos_token_id = 'x'"),
    ],
)
def test_another_network_is_refused(change, message, folder):
    hf = json.loads((folder / CONFIG).read_text()) | change
    (folder / CONFIG).write_text(json.dumps(hf))
    with pytest.raises(ValueError, match=f"config.json: .*{message}"):
        load(folder)


@pytest.mark.parametrize("stop", [384, [1, 10**12]])
def test_stop_ids_lie_inside_the_vocabulary(stop, folder):
    (folder / GENERATION).write_text(json.dumps({"eos_token_id": stop}))
    with pytest.raises(ValueError, match=r"generation_config.json: .* outside the voc"):
        load(folder)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_weights_must_be_finite(name, value, dtype, folder):
    part = folder / "part.safetensors"
    tensors = load_file(part)
    with np.errstate(over="ignore"):
        weights = tensors[name].astype(dtype)
        weights.flat[-1] = np.float64(value)
    save_file(tensors | {name: weights}, part)
    with pytest.raises(ValueError, match=rf"part.safetensors: {name} holds .*finite"):
        load(folder)
