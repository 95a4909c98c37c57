"""ALFWorld with invented houses: rules, plans, splits, replies."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.alfworld.game import NOTHING, Alfworld
from ragen_jax.host_games.alfworld.houses import (
    TASKS,
    goals,
    invent,
    solve,
)
from ragen_jax.host_games.alfworld.story import Story
from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION
from tests.host_games.alfworld.oracle import House
from tests.host_games.alfworld.small import invent_solved
from tests.host_games.fresh_processes import printed
from tests.pace import examples


def play(game, replies):
    steps = [game.step(reply) for reply in replies]
    assert not any(step.terminated or step.truncated for step in steps[:-1])
    return steps


def actions_of(text):
    return re.search(r"\nAdmissible actions: \[(.*)\]$", text)[1].split(", ")


# --- the rules


def test_an_episode_as_it_is_read():
    game = Alfworld(tasks=["heat"])
    told = [game.reset(0).text]
    replies = game.solution()
    told += [step.observation.text for step in play(game, replies)]
    assert list(zip(["", *replies], told, strict=True)) == EPISODE


@pytest.mark.parametrize(
    "split", ["training", pytest.param("validation", marks=pytest.mark.slow)]
)
def test_the_oracle_wins_every_house(split):
    game = Alfworld(split)
    assert game.is_solvable
    assert game.num_tasks is None
    for seed in range(200):
        game.reset(seed)
        *before, last = play(game, game.solution())
        assert all(step.reward == 0 and not step.info["success"] for step in before)
        assert all(step.info["valid"] for step in before)
        assert last.info == {"success": True, "valid": True}
        assert (last.reward, last.terminated, last.truncated) == (10.0, True, False)
        assert "Admissible" not in last.observation.text
        assert game.solution() == ()


@pytest.mark.slow
def test_random_walks_are_those_of_the_plain_rules():
    """Commands, texts and ends, also where both are driven where no plan goes."""
    wins = 0
    for seed in range(150):
        draw = random.Random(seed)
        content = invent(seed, TASKS, draw.choice(SPLITS))
        house, story = House(content["pddl_problem"]), Story(content)
        now, state = house.start, story.world.start
        for _ in range(40):
            possible = house.commands(now)
            assert list(story.commands(state)) == sorted(possible)
            busy = [x for x in possible if not x.startswith("go to")]
            command = draw.choice(draw.choice([busy, list(possible)]))
            move = story.commands(state)[command]
            now, state = possible[command], story.world.apply(state, move)
            assert story.answer(state, move) == house.says(now, command)
            assert story.world.is_won(state) == house.is_won(now)
            wins += house.is_won(now)
    assert wins > 20


@pytest.mark.parametrize("task", TASKS)
def test_walkthroughs_are_shortest(task):
    for seed in range(12):
        content = invent_solved(seed, (task,), TRAINING)
        house = House(content["pddl_problem"])
        assert len(content["walkthrough"]) == house.fewest_commands()


def test_the_walkthrough_of_a_house_is_what_solution_says():
    game = Alfworld()
    for seed in range(20):
        game.reset(seed)
        content = invent_solved(seed, TASKS, TRAINING)
        assert list(game.solution()) == content["walkthrough"]
        assert Story(content).walkthrough == game.solution()


@pytest.mark.slow
def test_the_oracle_wins_from_anywhere():
    game = Alfworld(max_steps=100)
    for seed in range(100):
        draw = random.Random(seed)
        text = game.reset(seed).text
        for _ in range(15):
            step = game.step(draw.choice(actions_of(text)))
            text = step.observation.text
            if step.terminated:
                break
        else:
            assert play(game, game.solution())[-1].info["success"]


def test_no_plan_is_shown_that_does_not_fit():
    game = Alfworld(max_steps=8)
    game.reset(0)
    needed = len(game.solution())
    assert needed == 6
    for _ in range(2):
        game.step("look")
    assert len(game.solution()) == needed
    game.step("look")
    assert game.solution() == ()


def test_the_game_is_truncated_after_its_steps():
    game = Alfworld(max_steps=3)
    game.reset(0)
    steps = play(game, ["look", "nonsense", "look"])
    assert [step.truncated for step in steps] == [False, False, True]
    assert not any(step.terminated or step.reward for step in steps)
    assert [step.info["valid"] for step in steps] == [True, False, True]
    game = Alfworld()
    game.reset(0)
    assert [step.truncated for step in play(game, ["look"] * 50)][-1]


def test_a_goal_reached_by_the_last_step_is_no_truncation():
    game = Alfworld()
    game.reset(0)
    game = Alfworld(max_steps=len(game.solution()))
    game.reset(0)
    last = play(game, game.solution())[-1]
    assert (last.terminated, last.truncated) == (True, False)


# --- goals and houses


def house_of(content):
    return content["pddl_problem"].partition("(:goal")[0]


def test_splits_share_no_goal_and_no_house():
    sets = {}
    for split in SPLITS:
        contents = [invent(seed, TASKS, split) for seed in range(1_500)]
        houses = {house_of(content) for content in contents}
        tasks = {content["grammar"].partition("Task: ")[2][:40] for content in contents}
        assert len(houses) > 1_400
        sets[split] = houses, tasks
    assert not sets[TRAINING][0] & sets[VALIDATION][0]
    assert not sets[TRAINING][1] & sets[VALIDATION][1]


@pytest.mark.parametrize("task", TASKS)
def test_all_goals_are_in_one_split(task):
    training, validation = (set(goals(task, split)) for split in SPLITS)
    assert not training & validation
    assert len(validation) == -(-len(training | validation) // 10)
    texts = {goal.text() for goal in training | validation}
    assert len(texts) == len(training | validation) >= 16


def test_tasks_are_those_asked_for_and_all_by_default():
    words = {"place": "put", "clean": "clean", "heat": "hot", "cool": "cold"}
    for task in TASKS:
        game = Alfworld(tasks=task)
        for seed in range(10):
            asked = game.reset(seed).text.partition("Task: ")[2].split(".")[0]
            assert words.get(task, "look at") in asked
    commands = set()
    game = Alfworld()
    for seed in range(60):
        game.reset(seed)
        commands |= {reply.split()[0] for reply in game.solution()}
    assert commands == {"go", "open", "take", "move", "clean", "heat", "cool", "use"}


@pytest.mark.slow
def test_goals_are_not_reached_at_first():
    for split in SPLITS:
        for seed in range(100):
            story = Story(invent(seed, TASKS, split))
            assert not story.world.is_won(story.world.start)
            assert len(solve(story, story.world.start)) >= 3


def test_task_chooses_the_house_as_the_seed_does():
    game = Alfworld()
    assert game.reset(3, task=8).text == game.reset(8).text != game.reset(3).text


def test_texts_are_short():
    game = Alfworld()
    assert len(game.instruction) < 250
    assert not game.instruction.endswith("\n")
    for seed in range(50):
        shown = [game.reset(seed).text]
        shown += [step.observation.text for step in play(game, game.solution())]
        assert max(map(len, shown)) < 330


def test_commands_can_be_left_out():
    game = Alfworld(show_actions=False)
    assert "Admissible" not in game.reset(0).text
    step = game.step("look")
    assert step.info["valid"]
    assert "Admissible" not in step.observation.text


# --- replies


@pytest.mark.parametrize("change", [str.upper, "  {}\n".format, lambda x: x.title()])
def test_case_and_blanks_do_not_matter(change):
    game = Alfworld()
    game.reset(0)
    replies = [change(reply).replace(" ", " \t ") for reply in game.solution()]
    assert play(game, replies)[-1].info["success"]


REPLIES = (
    st.text()
    | st.text("[](){}|?#; gotolookhall")
    | st.sampled_from(
        [
            "",
            "go to",
            "go to hall",
            "look look",
            "take",
            "x" * 1_000_000,
            "{p}",
            "#hand#",
        ]
    )
    | st.builds("go to {}".format, st.text(max_size=5))
)


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**31 - 1), st.lists(REPLIES, min_size=1, max_size=5))
def test_any_text_is_a_reply(seed, replies):
    game = Alfworld()
    possible = actions_of(game.reset(seed).text)
    for reply in replies:
        step = game.step(reply)
        text = step.observation.text
        assert set(step.info) == {"success", "valid"}
        assert step.info["valid"] == (" ".join(reply.lower().split()) in possible)
        if not step.info["valid"]:
            assert text.startswith(f"{NOTHING}\n")
            assert actions_of(text) == possible
        possible = actions_of(text)
    assert play(game, game.solution())[-1].info["success"]


TRANSCRIPT = """
from ragen_jax.host_games.alfworld.game import Alfworld
for split in ("training", "validation"):
    game = Alfworld(split)
    for seed in range(30):
        print(game.reset(seed))
        for reply in ("look", "?", *game.solution()):
            print(game.step(reply))
"""


@pytest.mark.slow
def test_episodes_are_the_same_in_every_process():
    assert printed(TRANSCRIPT).count(b"terminated=True") == 60


EPISODE = [
    (
        "",
        "You see: bed, microwave, sink, table. Task: put a hot apple in the table.\n"
        "Admissible actions: [go to bed, go to microwave, go to sink, go to table, "
        "look]",
    ),
    (
        "go to bed",
        "On the bed: apple, lamp, spoon, watch.\n"
        "Admissible actions: [go to microwave, go to sink, go to table, look, "
        "take apple from bed, take spoon from bed, take watch from bed, use lamp]",
    ),
    (
        "take apple from bed",
        "You hold: apple.\n"
        "Admissible actions: [go to microwave, go to sink, go to table, look, "
        "move apple to bed, use lamp]",
    ),
    (
        "go to microwave",
        "The microwave is closed.\n"
        "Admissible actions: [go to bed, go to sink, go to table, "
        "heat apple with microwave, look, open microwave]",
    ),
    (
        "heat apple with microwave",
        "You hold: hot apple.\n"
        "Admissible actions: [go to bed, go to sink, go to table, look, "
        "open microwave]",
    ),
    (
        "go to table",
        "On the table: nothing.\n"
        "Admissible actions: [go to bed, go to microwave, go to sink, look, "
        "move apple to table]",
    ),
    ("move apple to table", "You move the apple to the table."),
]
