"""Grammars: what they say, and which are refused."""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.alfworld.grammar import read_grammar
from ragen_jax.host_games.alfworld.houses import GRAMMAR
from ragen_jax.host_games.alfworld.story import Story, names
from tests.host_games.alfworld.small import LISTS, grammar_of, small


def test_names_are_numbered_downwards_as_in_alfworld():
    basin = "sink_bar__plus_00_bar_sinkbasin"
    ids = ["mug_bar_c", "agent1", "mug_bar_a", basin, "mug_bar_b", "basin", "mug_bar_a"]
    assert names(ids) == {
        "agent1": "agent1",
        "basin": "basin",
        "mug_bar_a": "mug 3",
        "mug_bar_b": "mug 2",
        "mug_bar_c": "mug 1",
        basin: "sinkbasin 1",
    }


def says(intro, rules=""):
    return Story(small(grammar_of(intro, rules))).intro()


@pytest.mark.parametrize(
    ("intro", "said"),
    [
        ("plain; text, (of) any: kind?", "plain; text, (of) any: kind?"),
        ("two\\n\\nlines", "two\n\nlines"),
        ("  blanks ", "blanks "),
        ("left ] over } brackets [ and # too", "left ] over } brackets [ and # too"),
        ("[{t.name | in(t:thing, p:place)}]", "desk 1, and mug 1"),
        (
            "[{t.name | in(t:thing, p:place) & at(a:agent, p:place)}]",
            "desk 1, and mug 1",
        ),
        ("[{t.name | has(a:agent, t:thing)}]", "nothing"),
        ("[{p.indefinite + ' ' + p.name | at(a:agent, p:place)}]", "a desk"),
        ("{t.name | in(t:thing, p:place)}", "desk 1mug 1"),
        ("{p.id or p.name | at(a:agent, p:place)}", "desk"),
        # `a` without a type is of the type `a`, which there is not.
        ("{p.id or p.name | at(a, p:place)}", ""),
        ("{a | at(a:agent, p:place)} {p.type | at(a:agent, p:place)}", "me place"),
        # Different placeholders are different objects.
        (
            "[{t.name | in(t:thing, p:place) & in(u:thing, p:place)}]",
            "desk 1, and mug 1",
        ),
        ("[{t | in(t:thing, p:place) & in(t:thing, q:place)}]", "nothing"),
        ("[{t.name | unheard(t:thing)}]", "nothing"),
        ("[{t.name | at(t:thing)}]", "nothing"),
        ("[{t.name | not_in(t:thing, p:place)}]", "nothing"),
    ],
)
def test_what_a_grammar_says(intro, said):
    assert says(intro, LISTS) == said


def test_lists_of_three_have_both_separators():
    content = small(grammar_of("[{t.name | in(t:thing, p:place)}]", LISTS))
    more = content["pddl_problem"].replace("me - agent", "me - agent pen - thing")
    content["pddl_problem"] = more.replace("(at me desk)", "(at me desk) (in pen desk)")
    assert Story(content).intro() == "desk 1, mug 1, and pen"


def test_the_first_rule_that_applies_is_used():
    rules = """, "it": [{"condition": "has(a:agent, t:thing)", "rhs": "You have it."},
      {"condition": "in(t:thing, p:place)", "rhs": "It is there."}, {"rhs": "Gone."}]"""
    content = small(grammar_of("#it#", rules).replace("You take it.", "#it# #it#"))
    story = Story(content)
    assert story.intro() == "It is there."
    moves = story.commands(story.world.start)
    state = story.world.apply(story.world.start, moves["take mug 1 from desk"])
    # There t is the mug and no other.
    said = story.answer(state, moves["take mug 1 from desk"])
    assert said == "You have it. You have it."


def test_what_was_undone_can_be_asked_for():
    rules = """, "g": [{"condition": "not_in(t:thing, p:place)", "rhs": "gone"},
      {"rhs": "-"}]"""
    content = small(grammar_of("#g#", rules).replace("You take it.", "#g#"))
    story = Story(content)
    moves = story.commands(story.world.start)
    state = story.world.apply(story.world.start, moves["take mug 1 from desk"])
    assert story.intro() == "-"
    assert story.answer(state, moves["take mug 1 from desk"]) == "gone"


def test_templates_may_ask_for_facts():
    template = "get [{t.name | in(t:thing, p:place)}]"
    story = Story(small(grammar_of("Hello.", LISTS, template)))
    assert list(story.commands(story.world.start)) == [
        "get desk 1",
        "get mug 1",
        "wait",
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("grammar ::", "grammer ::", "'grammer' where a block would begin"),
        ("grammar ::", "grammar", "where :: is expected"),
        ("# a comment", "§", "cannot be read from '§"),
        ('"rhs": "Hello."', '"rhs": "Hello.', "is not JSON"),
        ('{"rhs": "Hello."}', '"Hello."', 'not a list of {"rhs": "text"}'),
        ('[{"rhs": "Hello."}]', "1", 'not a list of {"rhs": "text"}'),
        ("Hello.", "#hello#", "no rule for the symbol #hello#"),
        ("Hello.", "{t.__class__ | in(t:thing, p:place)}", "not a sum of quoted words"),
        ("Hello.", "{open('x')}", "not a sum of quoted words"),
        ("Hello.", "{1 + 1}", "not a sum of quoted words"),
        ("Hello.", "{t.name +}", "is not an expression"),
        ("Hello.", "{t.name | in(t:thing}", "is not an atom"),
        ("Hello.", "{t.name | in(:thing)}", "is not an atom"),
        ("Hello.", "[{t.name | in(t:thing, p:place)}]", "symbol #list_empty#"),
        ("Hello.", "{t.name}", "speaks of t, which is not there"),
        ("Hello.", "#intro#", "more than 30 symbols"),
        ('"rhs": "Hello."', '"rhs": "a", "condition": "r()"', "no rule .* applies"),
        ("template", "templet", "has a part 'templet'"),
        ("action wait", "action rest", "no command for the action wait"),
        ("#taken#", "#tucked#", "no rule for the symbol #tucked#"),
    ],
)
def test_grammars_that_are_refused(old, new, words):
    grammar = grammar_of("Hello.")
    assert old in grammar
    with pytest.raises(ValueError, match=words):
        Story(small(grammar.replace(old, new, 1))).intro()


@settings(deadline=None)
@given(
    st.integers(0, len(GRAMMAR)),
    st.integers(0, 20),
    st.text('"{}[]#|&:;()\n', max_size=2),
)
def test_broken_grammars_are_refused_with_a_sentence(start, length, text):
    broken = GRAMMAR[:start] + text + GRAMMAR[start + length :]
    try:
        grammar = read_grammar(broken)
    except ValueError as error:
        event(f"refused: {str(error)[:25]}")
    else:
        assert grammar.rules
