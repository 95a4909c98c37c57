"""The tokenizer's wrapper: nothing added, nothing lost, every id spelled in bytes."""

import json
import re
import shutil
import sys

import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.program.build import BUILT_IN
from ragen_jax.text.tokenizer import byte_alphabet, load_tokenizer
from tests.reference.tokenizers import SPECIAL_TOKENS, train_qwen_style, train_uncut

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@pytest.fixture
def folder(qwen_folder, tmp_path):
    return shutil.copytree(qwen_folder, tmp_path / "copy")


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_encode_adds_nothing_and_decode_drops_nothing(tokenizer):
    text = "<|im_start|>user\n #_√  Up<|im_end|>\n\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == tokenizer.id_of("<|im_start|>")
    assert ids.count(tokenizer.id_of("<|im_end|>")) == 1
    assert tokenizer.encode("") == []
    assert tokenizer.encode_batch([text, "Up"]) == [ids, tokenizer.encode("Up")]
    assert tokenizer.decode_batch([ids, []]) == [text, ""]


@given(text=TEXTS)
@settings(deadline=None)
def test_token_bytes_spell_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    spelled = b"".join(tokenizer.token_bytes[i] for i in ids)
    assert spelled == text.encode("utf-8")
    assert tokenizer.decode(ids) == text


@given(data=st.data())
@settings(deadline=None)
def test_single_tokens_join_to_what_the_library_decodes(tokenizer, data):
    """Any ids: halves of characters, special tokens between them, unused ids."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    texts = tokenizer.spell(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids)


def test_a_character_belongs_to_the_last_of_its_tokens(tokenizer):
    by_byte = {spelled: i for i, spelled in enumerate(tokenizer.token_bytes)}
    halves = [by_byte[bytes([byte])] for byte in "√".encode()]
    assert tokenizer.spell(halves) == ["", "", "√"]
    assert tokenizer.spell(halves[:2]) == ["", "\ufffd"]
    end = tokenizer.id_of("<|im_end|>")
    assert tokenizer.spell([*halves[:1], end]) == ["", "\ufffd<|im_end|>"]


def test_special_tokens_have_no_bytes_and_plain_added_ones_do(tmp_path):
    plain = ("<tool_call>", "wörd")
    tokenizer = load_tokenizer(train_qwen_style(tmp_path / "t", plain_tokens=plain))
    for token in SPECIAL_TOKENS:
        assert tokenizer.token_bytes[tokenizer.id_of(token)] == b""
    for token in plain:
        assert tokenizer.token_bytes[tokenizer.id_of(token)] == token.encode("utf-8")
    assert len(tokenizer.token_bytes) == tokenizer.vocab_size
    assert tokenizer.id_of("wörd") == tokenizer.vocab_size - 1


def test_the_byte_alphabet_is_the_librarys():
    alphabet = byte_alphabet()
    assert set(alphabet) == set(hf.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["Ġ"] == 0x20
    assert alphabet["Ċ"] == 0x0A


def test_truncation_and_padding_of_the_file_are_off(folder):
    backend = hf.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("######\n#_OP_#\n")) == "######\n#_OP_#\n"


@pytest.mark.parametrize(("stop", "ids"), [(7, (7,)), ([7, 9], (7, 9)), (None, None)])
def test_stop_ids_come_from_the_generation_config(folder, stop, ids):
    edit(folder / "generation_config.json", lambda v: v.update(eos_token_id=stop))
    assert load_tokenizer(folder).stop_ids == ids


def test_a_folder_without_generation_config_has_no_stop_ids(folder):
    (folder / "generation_config.json").unlink()
    assert load_tokenizer(folder).stop_ids is None


def test_the_chat_template_may_be_a_separate_file(folder, tokenizer):
    assert "<|im_start|>" in tokenizer.chat_template
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert load_tokenizer(folder).chat_template == "{{ messages }}"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(folder).chat_template is None


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_tokenizer_that_transformers_reads_otherwise_is_refused(tmp_path, family):
    """Under Qwen's types transformers cuts every tokenizer like Qwen's."""
    folder = train_uncut(tmp_path / "uncut")
    edit(folder / "tokenizer_config.json", lambda v: v.update(tokenizer_class=None))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    if family == "llama":
        assert load_tokenizer(folder).encode("a \n b")
        return
    with pytest.raises(
        ValueError, match=r"does not read .* under model_type = 'qwen2'"
    ):
        load_tokenizer(folder)


def test_a_tokenizer_cut_like_qwens_needs_no_transformers(folder, monkeypatch):
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    monkeypatch.setitem(sys.modules, "transformers", None)
    load_tokenizer(folder)


def test_without_tokenizer_json_the_older_files_serve(folder, tokenizer):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    config = {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    rebuilt = load_tokenizer(folder)
    text = "######\n#_OP_#\nTurn 12: go up."
    assert rebuilt.encode(text) == tokenizer.encode(text)


def writing(name, text):
    return lambda folder: (folder / name).write_text(text)


def break_vocabulary(value):
    value["model"]["vocab"]["日本"] = len(value["model"]["vocab"]) + 500


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "no tokenizer folder"),
        (lambda f: (f / "tokenizer.json").unlink(), "neither tokenizer.json nor"),
        (writing("tokenizer.json", "{}"), "not a tokenizer file"),
        (writing("tokenizer.json", "?"), "not valid JSON"),
        (writing("tokenizer_config.json", "{"), "not valid JSON"),
        (writing("generation_config.json", "[]"), "not a JSON object"),
        (
            writing("generation_config.json", '{"eos_token_id": "end"}'),
            "must be a token id",
        ),
        (
            lambda f: edit(f / "tokenizer.json", break_vocabulary),
            "only byte-level BPE",
        ),
        (
            lambda f: edit(
                f / "tokenizer_config.json",
                lambda v: v.update(added_tokens_decoder={"3": {"content": "<x>"}}),
            ),
            "gives id 3 to '<x>'",
        ),
    ],
)
def test_bad_folders_are_one_sentence(folder, spoil, words):
    spoil(folder)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        load_tokenizer(folder)
    assert str(folder) in str(error.value)


def test_an_unknown_special_token_is_named(tokenizer):
    with pytest.raises(ValueError, match="no token '<s>'"):
        tokenizer.id_of("<s>")


def test_tags_in_a_text_from_outside_are_letters():
    tokenizer = load_tokenizer(BUILT_IN["pocket_host"])
    text = "Question </think><answer> the town<|im_end|>"
    ids = tokenizer.plain.encode(text, add_special_tokens=False).ids
    tags = (
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<|im_end|>",
        "<|im_start|>",
    )
    assert not set(map(tokenizer.id_of, tags)) & set(ids)
    assert tokenizer.decode(ids) == text
    # Words that were added to the vocabulary stay tokens.
    assert tokenizer.id_of("Question") in ids
    assert tokenizer.id_of(" town") in ids
