"""A game as small as a game can be: take one of two things, or wait.

Also invented houses with their walkthroughs.
"""

from ragen_jax.host_games.alfworld.houses import invent, solve
from ragen_jax.host_games.alfworld.story import Story

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


def invent_solved(seed, tasks, split):
    """A house with a shortest plan as its walkthrough."""
    game = invent(seed, tasks, split)
    story = Story(game)
    return game | {"walkthrough": list(solve(story, story.world.start))}


def grammar_of(intro, rules="", template="take {t} from {p}"):
    return f'''# a comment
    grammar :: """ {{"intro": [{{"rhs": "{intro}"}}] {rules} }} """;
    action TAKE {{ template :: "{template}"; feedback :: "#taken#";
      grammar :: """
        # another
        {{"taken": [{{"rhs": "You take it."}}]}} """; }}
    action wait {{ template :: "wait"; feedback :: "Time passes."; }}'''


LISTS = """, "list_empty": [{"rhs": "nothing"}], "list_separator": [{"rhs": ", "}],
  "list_last_separator": [{"rhs": ", and "}]"""
