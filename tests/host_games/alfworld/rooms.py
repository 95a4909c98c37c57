"""Random rooms for ALFRED's domain, as its data set writes them.

Locations, distances, names of Unity's objects and goals are in the form of the files
`initial_state.pddl` of ALFWorld's data; what is where is drawn.
"""

import random

RECEPTACLES = {
    "Cabinet": True,
    "CounterTop": False,
    "Desk": False,
    "Drawer": True,
    "Fridge": True,
    "Microwave": True,
    "Shelf": False,
}
# Objects: cleanable, heatable, coolable, sliceable, holds others.
OBJECTS = {
    "Apple": (1, 1, 1, 1, 0),
    "Bowl": (1, 0, 1, 0, 1),
    "CD": (0, 0, 0, 0, 0),
    "ButterKnife": (1, 0, 0, 0, 0),
    "Mug": (1, 1, 1, 0, 1),
    "Pen": (0, 0, 0, 0, 0),
}
PROPERTIES = ("cleanable", "heatable", "coolable", "sliceable", "isReceptacleObject")
STATES = {"isClean": "cleanable", "isHot": "heatable", "isCool": "coolable"}


def _number(draw):
    sign = draw.choice(["plus", "minus"])
    return f"_{sign}_{draw.randint(0, 9):02}_dot_{draw.randint(0, 99):02}"


def _mangled(kind, draw, end=""):
    return f"{kind}_bar_{_number(draw)}_bar_{_number(draw)}_bar_{_number(draw)}{end}"


def _goal(draw):
    kind = draw.choice([*OBJECTS])
    place = draw.choice([*RECEPTACLES, "SinkBasin"])
    way = draw.choice(["put", "two", "look", *STATES])
    if way == "look":
        return f"""(and
            (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
                (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot)
                (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
            (exists (?o - object ?a - agent) (and
                (objectType ?o {kind}Type) (holds ?a ?o))))"""
    if way == "two":
        return f"""(and (exists (?r - receptacle) (exists (?o1 - object) (and
            (objectType ?o1 {kind}Type) (receptacleType ?r {place}Type)
            (inReceptacle ?o1 ?r) (exists (?o2 - object) (and
                (not (= ?o1 ?o2)) (objectType ?o2 {kind}Type)
                (receptacleType ?r {place}Type) (inReceptacle ?o2 ?r)))))))"""
    state = f"({STATES[way]} ?o) ({way} ?o)" if way in STATES else ""
    return f"""(and (exists (?r - receptacle) (exists (?o - object) (and
        {state} (inReceptacle ?o ?r) (objectType ?o {kind}Type)
        (receptacleType ?r {place}Type)))))"""


def write_room(seed):
    """The text of a problem; most goals can be reached."""
    draw = random.Random(seed)
    places = {_mangled(kind, draw): kind for kind in RECEPTACLES}
    places |= {_mangled(draw.choice([*RECEPTACLES]), draw): None for _ in range(3)}
    places = {name: kind or name.split("_bar_")[0] for name, kind in places.items()}
    places[_mangled("Sink", draw, "_bar_SinkBasin")] = "SinkBasin"
    things = {_mangled(kind, draw): kind for kind in OBJECTS}
    things |= {_mangled(kind, draw): kind for kind in draw.sample([*OBJECTS], 4)}
    things[lamp := _mangled("DeskLamp", draw)] = "DeskLamp"
    spots = [f"loc_bar_{i}_bar__minus_{draw.randint(1, 9)}_bar_1" for i in range(9)]
    facts = ["(= (total-cost) 0)", f"(atLocation agent1 {spots[0]})"]
    at = {name: draw.choice(spots[1:]) for name in places}
    for name, kind in places.items():
        facts.append(f"(receptacleType {name} {kind}Type)")
        facts.append(f"(receptacleAtLocation {name} {at[name]})")
        if RECEPTACLES.get(kind):
            facts.append(f"(openable {name})")
            facts += [f"(opened {name})"] * draw.randint(0, 1)
    for name, kind in things.items():
        facts.append(f"(objectType {name} {kind}Type)")
        place = draw.choice([*places])
        facts.append(f"(inReceptacle {name} {place})")
        facts.append(f"(objectAtLocation {name} {at[place]})")
        if name != lamp:
            facts.append(f"(pickupable {name})")
            has = zip(PROPERTIES, OBJECTS[kind], strict=True)
            facts += [f"({fact} {name})" for fact, is_so in has if is_so]
    facts += [f"(toggleable {lamp})"]
    kinds = sorted({*RECEPTACLES, "SinkBasin"})
    facts += [
        f"(canContain {place}Type {thing}Type)"
        for place in kinds
        for thing in OBJECTS
        if draw.random() < 0.8
    ]
    facts += [f"(= (distance {x} {y}) 7)" for x in spots for y in spots if x != y]
    draw.shuffle(facts)
    return f"""(define (problem plan_trial_{seed})
    (:domain alfred)
    (:objects
        agent1 - agent
        {" - object ".join(OBJECTS)} - object
        {" ".join(f"{kind}Type - otype" for kind in [*OBJECTS, "DeskLamp", "Knife"])}
        {" ".join(f"{kind}Type - rtype" for kind in kinds)}
        {" ".join(f"{name} - object" for name in things)}
        {" ".join(f"{name} - receptacle" for name in places)}
        {" ".join(f"{spot} - location" for spot in spots)}
    )
    (:init
        {" ".join(facts)}
    )
    (:goal {_goal(draw)})
)"""
