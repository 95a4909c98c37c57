"""Reads PDDL: the domain and the problem of an ALFWorld game.

In: texts. Out: `Domain` and `Problem`, with conditions in negation normal form, so that
a negation stands before an atom or an equation only. Does not know what they mean;
`logic` does.

Read is what ALFRED's domain uses and a little more: types, constants, conditions of
and, or, not, imply, exists, forall, =, effects of and, not, forall, when. Numbers
(functions, increase, metric) are skipped: costs are of no effect on play. As usual for
planners, case does not matter and everything is read in lower case.

Source: PDDL 2.2, as the planner behind TextWorld reads it.
"""

import dataclasses
import functools
import re

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
# The parent of types that name no other.
ROOT = "object"
NUMERIC_EFFECTS = ("increase", "decrease", "assign", "scale-up", "scale-down")
# Deeper texts are refused before Python's own limit is reached.
MAX_DEPTH = 100


@dataclasses.dataclass(frozen=True)
class Literal:
    """An atom or, if not `positive`, its negation. Arguments with `?` are variables."""

    predicate: str
    arguments: tuple[str, ...]
    positive: bool = True


@dataclasses.dataclass(frozen=True)
class Equation:
    """Two terms are the same object or, if not `positive`, are not."""

    terms: tuple[str, str]
    positive: bool = True


@dataclasses.dataclass(frozen=True)
class All:
    """Every part holds; without parts, always."""

    parts: tuple["Condition", ...]


@dataclasses.dataclass(frozen=True)
class Some:
    """One part holds; without parts, never."""

    parts: tuple["Condition", ...]


@dataclasses.dataclass(frozen=True)
class Quantified:
    """`body` holds for one or, if `every`, for all objects of the variables' types."""

    variables: tuple[tuple[str, str], ...]
    body: "Condition"
    every: bool


Condition = Literal | Equation | All | Some | Quantified
ALWAYS = All(())


@dataclasses.dataclass(frozen=True)
class Effect:
    """`literal` becomes true for all objects of `variables` for which `when` holds."""

    literal: Literal
    variables: tuple[tuple[str, str], ...] = ()
    when: Condition = ALWAYS


@dataclasses.dataclass(frozen=True)
class Action:
    """What can be done: parameters are pairs of a variable and its type."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    precondition: Condition
    effects: tuple[Effect, ...]


@dataclasses.dataclass(frozen=True)
class Domain:
    """Types with their parents, constants with their types, and the actions."""

    types: dict[str, str]
    constants: dict[str, str]
    predicates: dict[str, int]
    actions: tuple[Action, ...]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Objects with their types (constants too), what is true at first, and the goal."""

    objects: dict[str, str]
    facts: tuple[tuple[str, ...], ...]
    goal: Condition


@functools.lru_cache(maxsize=8)
def read_domain(text: str) -> Domain:
    """The domain of a text; games of a data set share one.

    Raises:
      ValueError: the text is not a domain, or has parts that are not played.
    """
    types, constants, predicates, actions = {ROOT: ROOT}, {}, {}, []
    for section in _sections(text, "domain"):
        name, *rest = section
        if name == ":types":
            # A type that is not followed by a parent type is an object.
            types |= {type_: of for type_, of in _typed(rest) if type_ != ROOT}
        elif name == ":constants":
            constants = dict(_typed(rest))
        elif name == ":predicates":
            for declared in rest:
                head, *arguments = _expect_list(declared, "a predicate")
                predicates[_expect_name(head)] = len(_typed(arguments))
        elif name == ":action":
            actions.append(section)
        elif name not in (":requirements", ":functions"):
            raise ValueError(f"the domain has a section {name}, which is not played")
    types |= dict.fromkeys(set(types.values()) - set(types), ROOT)
    _check_types("constant", constants.items(), types)
    reader = _Reader(types, predicates)
    read = tuple(reader.action(section) for section in actions)
    if len({action.name for action in read}) < len(read):
        raise ValueError("the domain has two actions of the same name; rename one")
    return Domain(types, constants, predicates, read)


def read_problem(text: str, domain: Domain) -> Problem:
    """The problem of a text.

    Raises:
      ValueError: the text is not a problem of the domain.
    """
    objects, facts, goal = dict(domain.constants), [], None
    for name, *rest in _sections(text, "problem"):
        if name == ":objects":
            objects |= dict(_typed(rest))
        elif name == ":init":
            facts = [fact for fact in map(_fact, rest) if fact is not None]
        elif name == ":goal":
            if len(rest) != 1:
                raise ValueError("the problem's :goal is not one condition")
            goal = _Reader(domain.types, domain.predicates).condition(rest[0])
        elif name not in (":domain", ":requirements", ":metric"):
            raise ValueError(f"the problem has a section {name}, which is not played")
    if goal is None:
        raise ValueError("the problem has no :goal")
    _check_types("object", objects.items(), domain.types)
    for predicate, *arguments in facts:
        # ALFRED's files may say more than its domain asks for.
        if len(arguments) != domain.predicates.get(predicate, len(arguments)):
            raise ValueError(
                f"({predicate} {' '.join(arguments)}) in :init has {len(arguments)} "
                f"arguments, but the domain says {domain.predicates[predicate]}"
            )
        for argument in arguments:
            if argument not in objects:
                raise ValueError(f"{argument} in :init is not among the :objects")
    return Problem(objects, tuple(facts), goal)


def _parse(text: str) -> list:
    """Nested lists of lower-case words."""
    stack: list[list] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
            if len(stack) > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} brackets are open at once")
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1:
            raise ValueError("a bracket is closed that was not opened")
        else:
            closed = stack.pop()
            stack[-1].append(closed)
    if len(stack) > 1:
        raise ValueError(f"{len(stack) - 1} brackets are not closed")
    return stack[0]


def _sections(text: str, kind: str) -> list[list]:
    try:
        parsed = _parse(text)
    except ValueError as error:
        raise ValueError(f"the {kind} is not PDDL: {error}") from error
    head = parsed[0][:2] if len(parsed) == 1 and isinstance(parsed[0], list) else []
    named = len(head) == 2 and isinstance(head[1], list) and head[1][:1] == [kind]
    if not named or head[0] != "define":
        raise ValueError(f"the {kind} is not of the form (define ({kind} ...) ...)")
    sections = parsed[0][2:]
    for section in sections:
        if not isinstance(section, list) or not section:
            raise ValueError(
                f"{_shown(section)} stands alone in the {kind}; use (:name ...)"
            )
        _expect_name(section[0])
    return sections


def _typed(words: list) -> list[tuple[str, str]]:
    """Pairs of name and type from `a b - type c`, where `c` is an object."""
    pairs, untyped, i = [], [], 0
    while i < len(words):
        if words[i] != "-":
            untyped.append(_expect_name(words[i]))
            i += 1
            continue
        if i + 1 == len(words) or not untyped:
            raise ValueError("a - stands between no name and type")
        pairs += [(name, _expect_name(words[i + 1])) for name in untyped]
        untyped, i = [], i + 2
    return pairs + [(name, ROOT) for name in untyped]


def _expect_name(word: object) -> str:
    if not isinstance(word, str):
        raise ValueError(f"a name is expected where {_shown(word)} stands")
    return word


def _expect_list(words: object, what: str) -> list:
    if not isinstance(words, list) or not words:
        raise ValueError(f"{what} is expected where {_shown(words)} stands")
    return words


def _shown(words: object) -> str:
    if isinstance(words, list):
        words = f"({' '.join(map(_shown, words))})"
    return words if len(words) <= 80 else words[:80] + "..."


def _check_types(what: str, pairs, types: dict[str, str]) -> None:
    for name, type_ in pairs:
        if type_ not in types:
            raise ValueError(f"the {what} {name} is of the type {type_}, not declared")


def _fact(words: object) -> tuple[str, ...] | None:
    """A fact of :init; None for numbers and negations."""
    head, *arguments = _expect_list(words, "a fact")
    if head in ("=", "not"):
        return None
    return tuple(map(_expect_name, [head, *arguments]))


class _Reader:
    """Reads conditions and effects with the domain's types and predicates."""

    def __init__(self, types: dict[str, str], predicates: dict[str, int]):
        self._types, self._predicates = types, predicates

    def action(self, section: list) -> Action:
        keys = section[2::2]
        if (
            len(section) < 2
            or len(section) % 2
            or len(keys) != len(set(map(str, keys)))
        ):
            raise ValueError(
                f"{_shown(section)} is not (:action NAME :parameters (...) "
                ":precondition (...) :effect (...))"
            )
        parts = dict(zip(map(_expect_name, keys), section[3::2], strict=True))
        if not set(parts) <= {":parameters", ":precondition", ":effect"}:
            raise ValueError(f"{_shown(section)} has parts that are not played")
        listed = parts.get(":parameters", [])
        if not isinstance(listed, list):
            raise ValueError(f":parameters of {_shown(section[1])} are not in brackets")
        parameters = tuple(_typed(listed))
        _check_types("parameter", parameters, self._types)
        return Action(
            _expect_name(section[1]),
            parameters,
            self.condition(parts.get(":precondition", [])),
            self._effects(parts.get(":effect", []), (), ALWAYS),
        )

    def condition(self, words: object, positive: bool = True) -> Condition:
        if words == []:
            return ALWAYS if positive else Some(())
        head, *rest = _expect_list(words, "a condition")
        counts = {"not": 1, "imply": 2, "=": 2, "exists": 2, "forall": 2}
        if not isinstance(head, str) or len(rest) != counts.get(head, len(rest)):
            raise ValueError(f"{_shown(words)} is not a condition")
        if head == "not":
            return self.condition(rest[0], not positive)
        if head == "imply":
            return self.condition(["or", ["not", rest[0]], rest[1]], positive)
        if head in ("and", "or"):
            parts = tuple(self.condition(part, positive) for part in rest)
            return All(parts) if (head == "and") == positive else Some(parts)
        if head in ("exists", "forall"):
            body = self.condition(rest[1], positive)
            variables = self._variables(rest[0])
            return Quantified(variables, body, every=(head == "forall") == positive)
        if head == "=":
            first, second = map(_expect_name, rest)
            return Equation((first, second), positive)
        return self._literal(words, positive)

    def _variables(self, words: object) -> tuple[tuple[str, str], ...]:
        # Types may be unknown here, and then no object is of them: in ALFRED's domain
        # a comma makes `location,` such a type, and what lies about cannot be examined
        # in the original.
        pairs = tuple(_typed(_expect_list(words, "a list of variables")))
        unknown = [t for _, t in pairs if t.rstrip(",") not in self._types]
        if unknown:
            raise ValueError(f"the type {unknown[0]} of a variable is not declared")
        return pairs

    def _literal(self, words: object, positive: bool) -> Literal:
        head, *arguments = map(_expect_name, _expect_list(words, "an atom"))
        if self._predicates.get(head) != len(arguments):
            raise ValueError(
                f"{_shown(words)} is not an atom: :predicates lack this name and "
                "number of arguments"
            )
        return Literal(head, tuple(arguments), positive)

    def _effects(self, words, variables, when: Condition) -> tuple[Effect, ...]:
        if words == []:
            return ()
        head, *rest = _expect_list(words, "an effect")
        if head in NUMERIC_EFFECTS:
            return ()
        if head == "and":
            parts = [self._effects(part, variables, when) for part in rest]
            return tuple(effect for part in parts for effect in part)
        if head == "forall" and len(rest) == 2:
            return self._effects(rest[1], variables + self._variables(rest[0]), when)
        if head == "when" and len(rest) == 2:
            both = All((when, self.condition(rest[0])))
            return self._effects(rest[1], variables, both)
        if head == "not" and len(rest) == 1:
            return (Effect(self._literal(rest[0], False), variables, when),)
        return (Effect(self._literal(words, True), variables, when),)
