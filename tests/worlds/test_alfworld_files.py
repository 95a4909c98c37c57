"""Games from files: folders, splits, names, walkthroughs, grammars, what is refused."""

import json
import random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ragen_jax.worlds.alfworld import NOTHING, Alfworld
from ragen_jax.worlds.alfworld_files import find_games
from ragen_jax.worlds.alfworld_grammar import read_grammar
from ragen_jax.worlds.alfworld_houses import GRAMMAR, TASKS, invent_solved
from ragen_jax.worlds.alfworld_story import Story, names
from ragen_jax.worlds.base import SPLITS, TRAINING, VALIDATION


def solved(seed):
    return invent_solved(seed, TASKS, TRAINING)


def put(folder, path, content):
    file = folder / path / "game.tw-pddl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def first_line(game, **where):
    return game.reset(0, **where).text.partition("\n")[0]


# --- folders


def test_files_are_played_as_the_houses_they_hold(tmp_path):
    for seed in range(5):
        put(tmp_path, f"train/{seed}", solved(seed))
    game, invented = Alfworld(data=str(tmp_path)), Alfworld()
    assert game.num_tasks == 5
    assert game.is_solvable is False
    for seed in range(5):
        assert game.reset(99, task=seed) == invented.reset(seed) == game.reset(5 + seed)
        assert game.solution() == invented.solution()
        for reply in game.solution():
            step = game.step(reply)
            assert step == invented.step(reply)
        assert step.info["success"]


def test_games_are_in_alphabetical_order(tmp_path):
    for seed, path in enumerate(["train/b/y", "train/b/x", "train/a", "train/b-c/x"]):
        put(tmp_path, path, solved(seed))
    found = find_games(str(tmp_path), TRAINING)
    where = [path.removeprefix(str(tmp_path)) for path in found]
    order = ["train/a", "train/b/x", "train/b/y", "train/b-c/x"]
    assert where == [f"/{path}/game.tw-pddl" for path in order]


def test_folders_name_their_split(tmp_path):
    paths = {
        "train/a": 0,
        "valid_seen/a": 1,
        "valid_unseen/b": 2,
        "valid_train/train/c": 3,
    }
    for path, seed in paths.items():
        put(tmp_path, path, solved(seed))
    for split, seeds in ((TRAINING, {0, 3}), (VALIDATION, {1, 2})):
        game = Alfworld(split, data=str(tmp_path))
        texts = {first_line(game, task=task) for task in range(game.num_tasks)}
        assert texts == {
            Alfworld().reset(seed).text.partition("\n")[0] for seed in seeds
        }
    # Also where the folder itself is named.
    assert len(find_games(str(tmp_path / "valid_seen"), VALIDATION)) == 1
    with pytest.raises(ValueError, match="no solvable game for training among 1 files"):
        find_games(str(tmp_path / "valid_seen"), TRAINING)


def test_other_folders_are_dealt_by_problem(tmp_path):
    for seed in range(80):
        put(tmp_path, f"games/{seed}", solved(seed))
        # The same game again: it may not be in the other split.
        put(tmp_path, f"copies/{seed}", solved(seed) | {"walkthrough": None})
    found = {split: find_games(str(tmp_path), split) for split in SPLITS}
    assert sum(map(len, found.values())) == 160
    problems = {
        split: {json.load(open(path))["pddl_problem"] for path in paths}
        for split, paths in found.items()
    }
    assert not problems[TRAINING] & problems[VALIDATION]
    # A tenth of 80, within about four standard deviations.
    assert 1 <= len(problems[VALIDATION]) <= 19


def test_games_that_are_not_said_to_be_solvable_are_left_out(tmp_path):
    for number, solvable in enumerate([True, False, None, "yes"]):
        put(tmp_path, f"train/{number}", solved(0) | {"solvable": solvable})
    assert len(find_games(str(tmp_path), TRAINING)) == 1


def test_other_files_are_no_games(tmp_path):
    put(tmp_path, "train/a", solved(0))
    (tmp_path / "train/a/traj_data.json").write_text("{}")
    assert len(find_games(str(tmp_path), TRAINING)) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is no JSON: "), ("[]", "holds no JSON object"), ("\ud800", "is no JSON")],
)
def test_files_that_are_no_games_are_refused_at_once(tmp_path, content, words):
    file = put(tmp_path, "train/a", "")
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=words):
        Alfworld(data=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grammar": None}, "a/game.tw-pddl cannot be played: .* no text 'grammar'"),
        ({"pddl_domain": "(define"}, "cannot be played: the domain is no PDDL"),
        ({"pddl_problem": "()"}, "cannot be played: the problem is not of the form"),
        ({"grammar": "action go {}"}, "the action go of the grammar has no template"),
        ({"grammar": 'grammar :: """{}""";'}, "no rule for the symbol #intro#"),
        ({"walkthrough": "look"}, "the walkthrough is no list of commands"),
        ({"walkthrough": [1]}, "the walkthrough is no list of commands"),
    ],
)
def test_games_that_cannot_be_played_name_their_file(tmp_path, change, words):
    put(tmp_path, "train/a", solved(0) | change)
    game = Alfworld(data=str(tmp_path))
    with pytest.raises(ValueError, match=words):
        game.reset(0)


def test_tasks_are_those_of_the_files(tmp_path):
    put(tmp_path, "train/a", solved(0))
    game = Alfworld(data=str(tmp_path))
    for task in (-1, 1):
        with pytest.raises(ValueError, match=f"task is {task}; use 0 to 0"):
            game.reset(0, task=task)


# --- walkthroughs


def test_what_is_left_of_a_walkthrough_is_the_solution(tmp_path):
    content = solved(0)
    put(tmp_path, "train/a", content)
    game = Alfworld(data=str(tmp_path))
    game.reset(0)
    first, *rest = content["walkthrough"]
    assert list(game.solution()) == [first, *rest]
    game.step("nonsense")
    assert list(game.solution()) == [first, *rest]
    game.step(first)
    assert list(game.solution()) == rest
    game.step("look")
    assert game.solution() == ()


MANGLED = {"mug": "Mug_bar__minus_00_dot_40_bar__plus_00_dot_86", "desk": "Desk_bar_1"}
SMALL_DOMAIN = """(define (domain small) (:types agent place thing)
  (:predicates (at ?a ?p) (in ?t ?p) (has ?a ?t) (idle ?a))
  (:action take :parameters (?a - agent ?t - thing ?p - place)
    :precondition (and (in ?t ?p) (at ?a ?p))
    :effect (and (has ?a ?t) (not (in ?t ?p))))
  (:action wait :parameters (?a - agent) :precondition () :effect (idle ?a)))"""
SMALL_PROBLEM = f"""(define (problem small) (:domain small)
  (:objects me - agent {" ".join(MANGLED.values())} - thing desk - place)
  (:init (at me desk) (in {MANGLED["mug"]} desk) (in {MANGLED["desk"]} desk))
  (:goal (has me {MANGLED["mug"]})))"""


def small(grammar, **more):
    texts = {"pddl_domain": SMALL_DOMAIN, "pddl_problem": SMALL_PROBLEM}
    return texts | {"grammar": grammar, "solvable": True} | more


def grammar_of(intro, rules="", template="take {t} from {p}"):
    return f'''# a comment
    grammar :: """ {{"intro": [{{"rhs": "{intro}"}}] {rules} }} """;
    action TAKE {{ template :: "{template}"; feedback :: "#taken#";
      grammar :: """
        # another
        {{"taken": [{{"rhs": "You take it."}}]}} """; }}
    action wait {{ template :: "wait"; feedback :: "Time passes."; }}'''


def test_walkthroughs_may_name_objects_as_the_problem_does(tmp_path):
    mangled = MANGLED["mug"].lower()
    plans = [["take mug 1 from desk"], [f"take {mangled}  from desk"]]
    for number, plan in enumerate(plans):
        content = small(grammar_of("Hello."), walkthrough=plan)
        put(tmp_path, f"train/{number}", content)
    game = Alfworld(data=str(tmp_path))
    for task in range(2):
        game.reset(0, task=task)
        assert game.solution() == ("take mug 1 from desk",)
        assert game.step(game.solution()[0]).info["success"]


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


# --- grammars

LISTS = """, "list_empty": [{"rhs": "nothing"}], "list_separator": [{"rhs": ", "}],
  "list_last_separator": [{"rhs": ", and "}]"""


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
        ("{p.id or p.name | at(a, p:place)}", "nothing here"),
        ("{a | at(a:agent, p:place)} {p.type | at(a:agent, p:place)}", "me place"),
        # Different placeholders are different objects.
        (
            "[{t.name | in(t:thing, p:place) & in(u:thing, p:place)}]",
            "desk 1, and mug 1",
        ),
        ("[{t.name | in(t:thing, p:place) & in(t:thing, q:place)}]", "nothing"),
        ("[{t.name | unheard(t:thing)}]", "nothing"),
        ("[{t.name | at(t:thing)}]", "nothing"),
        ("[{t.name | not_in(t:thing, p:place)}]", "nothing"),
    ],
)
def test_what_a_grammar_says(intro, said):
    if said == "nothing here":
        # `a` without a type is of the type `a`, which there is not.
        assert says(intro, LISTS) == ""
    else:
        assert says(intro, LISTS) == said


def test_lists_of_three_have_both_separators():
    intro = "[{t.name | in(t:object, p:place)}]: [{x | in(x:object, y:object)}]"
    assert says(intro, LISTS) == "desk 1, and mug 1: desk 1, and mug 1"
    rules = LISTS + ', "all": [{"rhs": "[{x.name | is(x:object)}]"}]'
    text = json.loads(f"{{{rules[1:]}}}")["all"][0]["rhs"].replace("is(x:object)", "{}")
    assert text == "[{x.name | {}}]"


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
    rules = ', "g": [{"condition": "not_in(t:thing, p:place)", "rhs": "gone"}, {"rhs": "-"}]'
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


def test_two_moves_with_one_command_are_the_first(tmp_path):
    put(tmp_path, "train/a", small(grammar_of("Hello.", template="take it")))
    game = Alfworld(data=str(tmp_path))
    assert game.reset(0).text.endswith("[take it, wait]")
    assert game.step("TAKE IT").info == {"success": False, "valid": True}
    assert game.step("take it").info["success"]
    assert game.reset(0).text == "Hello.\nAdmissible actions: [take it, wait]"
    assert game.step("take").observation.text.startswith(NOTHING)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("grammar ::", "grammer ::", "'grammer' where a block would begin"),
        ("grammar ::", "grammar", "where :: is expected"),
        ("# a comment", "§", "cannot be read from '§"),
        ('"rhs": "Hello."', '"rhs": "Hello.', "is no JSON"),
        ('{"rhs": "Hello."}', '"Hello."', 'no list of {"rhs": "text"}'),
        ('[{"rhs": "Hello."}]', "1", 'no list of {"rhs": "text"}'),
        ("Hello.", "#hello#", "no rule for the symbol #hello#"),
        ("Hello.", "{t.__class__ | in(t:thing, p:place)}", "no sum of quoted words"),
        ("Hello.", "{open('x')}", "no sum of quoted words"),
        ("Hello.", "{1 + 1}", "no sum of quoted words"),
        ("Hello.", "{t.name +}", "is no expression"),
        ("Hello.", "{t.name | in(t:thing}", "is no atom"),
        ("Hello.", "{t.name | in(:thing)}", "is no atom"),
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


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_any_text_is_a_reply_to_a_file(tmp_path_factory, replies):
    folder = tmp_path_factory.mktemp("games")
    put(folder, "train/a", solved(random.Random(0).randint(0, 9)))
    game = Alfworld(data=str(folder))
    game.reset(0)
    for reply in replies:
        step = game.step(reply)
        assert step.info["valid"] or step.observation.text.startswith(f"{NOTHING}\n")


# --- checking a folder


def test_walkthroughs_that_do_not_win_are_listed(tmp_path):
    good = solved(0)
    put(tmp_path, "train/good", good)
    lost = put(tmp_path, "train/lost", good | {"walkthrough": good["walkthrough"][:-1]})
    none = put(tmp_path, "train/none", good | {"walkthrough": None})
    broken = put(tmp_path, "train/broken", good | {"pddl_domain": "()"})
    put(
        tmp_path,
        "valid_seen/nothing",
        good | {"walkthrough": ["x", *good["walkthrough"]]},
    )
    assert list(check(str(tmp_path))) == [
        f"{broken} cannot be played: the domain is not of the form "
        "(define (domain ...) ...)",
        f"{lost} its walkthrough does not win",
        f"{none} has no walkthrough",
        "training: 1 of 4 walkthroughs win",
        "validation: 1 of 1 walkthroughs win",
    ]
