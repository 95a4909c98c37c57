"""Chat markup: equal to the checkpoint's own chat template, wherever it is cut."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from envs.templates import Number, Template
from ragen_jax.program.build import POCKET
from ragen_jax.text import chat
from ragen_jax.text.messages import in_markup
from ragen_jax.text.tokenizer import load_tokenizer
from tests.text import dialogues

SYSTEM, USER = Template(("You play.",)), Template(("Turn ", Number("turn", 1, 9), "."))
REPLY = "go up</think><answer>Up</answer>"


@pytest.fixture(scope="module", params=["chatml", "llama3"])
def model_folder(request, qwen_folder, llama_folder):
    return qwen_folder if request.param == "chatml" else llama_folder


@pytest.fixture(scope="module")
def reference(model_folder):
    return transformers.AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return load_tokenizer(model_folder)


@pytest.fixture
def markup(tokenizer):
    return tokenizer.markup


@pytest.fixture(params=[True, False])
def prefix(request):
    return chat.forced_prefix(thinking=request.param)


def messages(num_turns, prefix):
    """The dialogue up to the user's message of a turn."""
    said = [{"role": "system", "content": "You play."}]
    for turn in range(1, num_turns + 1):
        said.append({"role": "user", "content": f"Turn {turn}."})
        if turn < num_turns:
            said.append({"role": "assistant", "content": prefix + REPLY})
    return said


def rendered(num_turns, prefix, *, was_cut, markup=chat.CHATML):
    """The same from our templates and replies as sampled."""
    text = chat.opening(SYSTEM, USER, prefix, markup).render({"turn": 1})
    for turn in range(2, num_turns + 1):
        text += REPLY if was_cut else REPLY + markup.end
        following = chat.following(USER, prefix, markup)
        text += following.render({"turn": turn, "was_cut": was_cut})
    return text


@pytest.mark.parametrize("was_cut", [0, 1])
@pytest.mark.parametrize("num_turns", [1, 2, 4])
def test_text_and_ids_are_those_of_the_chat_template(
    reference, tokenizer, num_turns, was_cut, prefix, markup
):
    text = reference.apply_chat_template(
        messages(num_turns, prefix), tokenize=False, add_generation_prompt=True
    )
    ours = rendered(num_turns, prefix, was_cut=was_cut, markup=markup)
    assert ours == text + prefix
    ids = reference.apply_chat_template(
        messages(num_turns, prefix), add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.encode(ours) == ids + tokenizer.encode(prefix)


def test_a_dialogue_so_far_begins_every_later_one(prefix):
    texts = [rendered(num_turns, prefix, was_cut=0) for num_turns in (1, 2, 3)]
    assert texts[1].startswith(texts[0])
    assert texts[2].startswith(texts[1])
    assert texts[0].endswith("<|im_start|>assistant\n" + prefix)


@pytest.fixture(params=["qwen", "pocket", "llama"])
def source(request, qwen_folder, llama_folder):
    folders = {"qwen": qwen_folder, "pocket": POCKET, "llama": llama_folder}
    return folders[request.param]


@pytest.mark.parametrize("has_tag", [True, False])
@pytest.mark.parametrize("num_turns", [1, 2, 4])
def test_our_chat_template_gives_the_dialogue(
    source, tmp_path, num_turns, prefix, has_tag
):
    """Text and ids, forced tag included, whether earlier replies come with it or not.

    Source of the ids: the same text, which a tokenizer of another kind would cut
    elsewhere.
    """
    folder = shutil.copytree(source, tmp_path / "model")
    markup = load_tokenizer(folder).markup
    (folder / "chat_template.jinja").write_text(chat.jinja_template(prefix, markup))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    said = messages(num_turns, prefix)
    if not has_tag:
        for message in said:
            message["content"] = message["content"].removeprefix(prefix)
    options = {"add_generation_prompt": True, "return_dict": False}
    text = theirs.apply_chat_template(said, tokenize=False, **options)
    assert text == rendered(num_turns, prefix, was_cut=0, markup=markup)
    ids = theirs.apply_chat_template(said, **options)
    assert ids == load_tokenizer(folder).encode(text)


def test_a_finished_dialogue_asks_for_nothing(reference, prefix, markup):
    reference.chat_template = chat.jinja_template(prefix, markup)
    said = [*messages(1, prefix), {"role": "assistant", "content": REPLY}]
    text = reference.apply_chat_template(said, tokenize=False)
    finished = rendered(1, prefix, was_cut=0, markup=markup) + REPLY + markup.end
    assert text == finished + markup.gap


def test_a_tokenizer_without_markup_is_refused(qwen_folder, tmp_path):
    folder = shutil.copytree(qwen_folder, tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text().replace("<|im_start|>", "<|begin|>")
        (folder / name).write_text(text)
    with pytest.raises(ValueError, match="no chat markup that is known"):
        _ = load_tokenizer(folder).markup


def test_the_words_of_a_game_are_in_the_model_s_markup(llama_folder):
    """Messages, windows and stop tokens, on the device and as text."""
    tokenizer = load_tokenizer(llama_folder)
    dialogue = dialogues.build(tokenizer)
    assert dialogue.stop_token == tokenizer.id_of("<|eot_id|>")
    assert len(dialogue.stop_tokens) == 2
    fields = dialogues.FIELDS
    text = dialogue.prompts.opening.render(fields)
    assert text.startswith(
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou"
    )
    assert text.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n<think>")
    on_device = dialogue.opening.tokens(jax.tree.map(jnp.asarray, fields))
    ids = np.asarray(on_device.tokens)[: int(on_device.length)]
    assert tokenizer.decode(ids) == text
    following = dialogue.prompts.following.render(fields | {"was_cut": 1})
    assert following.startswith("<|eot_id|><|start_header_id|>user<|end_header_id|>")
    for context in ("single_turn", "last_k"):
        seen = dialogues.build(tokenizer, context=context, context_turns=2).windows
        ids = [np.asarray(x) for x in jax.tree.leaves(seen) if x.dtype == jnp.int32]
        named = tokenizer.id_of("<|start_header_id|>")
        assert any((x == named).any() for x in ids)
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    written = chat.opening(Template(("a",)), Template(("b",)), "<think>", chat.LLAMA3)
    assert in_markup(messages, "<think>", tokenizer.markup) == written.render({})
