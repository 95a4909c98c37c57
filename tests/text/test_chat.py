"""Chat markup: equal to the checkpoint's own chat template, wherever it is cut."""

import shutil

import pytest
import transformers

from envs.templates import Number, Template
from ragen_jax.program.build import POCKET
from ragen_jax.text import chat
from ragen_jax.text.tokenizer import load_tokenizer

SYSTEM, USER = Template(("You play.",)), Template(("Turn ", Number("turn", 1, 9), "."))
REPLY = "go up</think><answer>Up</answer>"


@pytest.fixture(scope="module")
def reference(qwen_folder):
    return transformers.AutoTokenizer.from_pretrained(qwen_folder)


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


def rendered(num_turns, prefix, *, was_cut):
    """The same from our templates and replies as sampled."""
    text = chat.opening(SYSTEM, USER, prefix).render({"turn": 1})
    for turn in range(2, num_turns + 1):
        text += REPLY if was_cut else REPLY + chat.END
        following = chat.following(USER, prefix)
        text += following.render({"turn": turn, "was_cut": was_cut})
    return text


@pytest.mark.parametrize("was_cut", [0, 1])
@pytest.mark.parametrize("num_turns", [1, 2, 4])
def test_text_and_ids_are_those_of_the_chat_template(
    reference, tokenizer, num_turns, was_cut, prefix
):
    text = reference.apply_chat_template(
        messages(num_turns, prefix), tokenize=False, add_generation_prompt=True
    )
    ours = rendered(num_turns, prefix, was_cut=was_cut)
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


@pytest.fixture(params=["qwen", "pocket"])
def source(request, qwen_folder):
    return qwen_folder if request.param == "qwen" else POCKET


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
    (folder / "chat_template.jinja").write_text(chat.jinja_template(prefix))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    said = messages(num_turns, prefix)
    if not has_tag:
        for message in said:
            message["content"] = message["content"].removeprefix(prefix)
    options = {"add_generation_prompt": True, "return_dict": False}
    text = theirs.apply_chat_template(said, tokenize=False, **options)
    assert text == rendered(num_turns, prefix, was_cut=0)
    ids = theirs.apply_chat_template(said, **options)
    assert ids == load_tokenizer(folder).encode(text)


def test_a_finished_dialogue_asks_for_nothing(reference, prefix):
    reference.chat_template = chat.jinja_template(prefix)
    said = [*messages(1, prefix), {"role": "assistant", "content": REPLY}]
    text = reference.apply_chat_template(said, tokenize=False)
    assert text == rendered(1, prefix, was_cut=0) + REPLY + chat.END + "\n"
