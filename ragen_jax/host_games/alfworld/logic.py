"""Plays PDDL: what is possible, what it changes, whether the goal is reached.

In: a domain and a problem (`pddl`), and states. Out: states. Does not know
what anything is called in English.

Conditions are compiled once per problem. Possible actions are found by joining the
facts of a state, atom by atom, most restrictive first; nothing is grounded in advance,
so that a house of 40 receptacles and 60 objects is ready at once.

Source: PDDL 2.2 as the Fast Downward planner plays it in TextWorld: effects add after
they delete, and an action that by its preconditions alone changes nothing (to go where
one is) is not possible.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ragen_jax.host_games.alfworld.pddl import (
    ROOT,
    Action,
    All,
    Condition,
    Domain,
    Equation,
    Literal,
    Problem,
    Quantified,
    Some,
)

Arguments = tuple[str, ...]
Facts = Mapping[str, frozenset[Arguments]]
Binding = dict[str, str]
Test = Callable[[Facts, Binding], bool]
Find = Callable[[Facts, Binding], Iterator[Binding]]
Variables = Iterable[tuple[str, str]]


class State(NamedTuple):
    """The facts that hold.

    Attributes:
      facts: arguments by predicate; absent facts are false.
      undone: facts that an action has made false and none true again, with their
        predicates; grammars ask for them.
    """

    facts: Facts
    undone: frozenset[tuple[str, ...]]


class Move(NamedTuple):
    """An action with objects for its parameters."""

    action: str
    arguments: Arguments


class _Compiled(NamedTuple):
    names: tuple[str, ...]
    find: Find
    required: tuple[Literal, ...]
    effects: tuple[tuple[Literal, tuple[tuple[str, str], ...], Test], ...]
    may_change_nothing: bool


class World:
    """A problem with its states.

    Attributes:
      start: the first state.
      members: objects by type.
      aims: what the goal names, its variables too.
      parameters: of the actions, pairs of a variable and its type.
    """

    def __init__(self, domain: Domain, problem: Problem):
        """Compile the conditions.

        Raises:
          ValueError: a condition has a variable that nothing introduces.
        """
        self.members = _members(domain.types, problem.objects)
        facts: dict[str, set] = {name: set() for name in domain.predicates}
        for predicate, *arguments in problem.facts:
            facts.setdefault(predicate, set()).add(tuple(arguments))
        frozen = {name: frozenset(rows) for name, rows in facts.items()}
        self.start = State(frozen, frozenset())
        self.parameters = {action.name: action.parameters for action in domain.actions}
        self._actions = {action.name: self._action(action) for action in domain.actions}
        self._goal = self._test(problem.goal, frozenset())
        self.aims = _terms(problem.goal)

    def is_won(self, state: State) -> bool:
        """Whether the goal is reached."""
        return self._goal(state.facts, {})

    def moves(self, state: State) -> list[Move]:
        """The possible moves, in the order of the actions and then of the objects."""
        moves = []
        for name, action in self._actions.items():
            bindings = {
                tuple(binding[variable] for variable in action.names)
                for binding in action.find(state.facts, {})
            }
            moves += [
                Move(name, arguments)
                for arguments in sorted(bindings)
                if not (action.may_change_nothing and _is_empty(action, arguments))
            ]
        return moves

    def apply(self, state: State, move: Move) -> State:
        """The state after a possible move."""
        action = self._actions[move.action]
        binding = dict(zip(action.names, move.arguments, strict=True))
        added, removed = set(), set()
        for literal, variables, when in action.effects:
            for values in itertools.product(*(self._of(t) for _, t in variables)):
                names = (name for name, _ in variables)
                full = binding | dict(zip(names, values, strict=True))
                if when(state.facts, full):
                    fact = (literal.predicate, *_ground(literal, full))
                    (added if literal.positive else removed).add(fact)
        removed -= added
        facts = dict(state.facts)
        for predicate in {fact[0] for fact in added | removed}:
            more = {fact[1:] for fact in added if fact[0] == predicate}
            fewer = {fact[1:] for fact in removed if fact[0] == predicate}
            facts[predicate] = facts[predicate] - fewer | more
        return State(facts, (state.undone - added) | removed)

    def _of(self, type_: str) -> list[str]:
        return sorted(self.members.get(type_, ()))

    def _action(self, action: Action) -> _Compiled:
        names = tuple(name for name, _ in action.parameters)
        if len(set(names)) < len(names):
            raise ValueError(f"the action {action.name} has a parameter twice")
        effects = []
        for effect in action.effects:
            bound = frozenset(names) | {name for name, _ in effect.variables}
            self._check(effect.literal.arguments, bound)
            effects.append(
                (effect.literal, effect.variables, self._test(effect.when, bound))
            )
        required = tuple(
            part
            for part in _conjuncts(action.precondition)
            if isinstance(part, Literal)
        )
        is_plain = all(
            not effect.variables and not tuple(_conjuncts(effect.when))
            for effect in action.effects
        )
        needed = {(part.predicate, part.positive) for part in required}
        needed |= {(e.literal.predicate, False) for e in action.effects}
        return _Compiled(
            names=names,
            find=self._find(action.parameters, action.precondition, frozenset()),
            required=required,
            effects=tuple(effects),
            may_change_nothing=is_plain
            and all(
                (e.literal.predicate, e.literal.positive) in needed
                for e in action.effects
            ),
        )

    def _check(self, terms: Iterable[str], bound: frozenset[str]) -> None:
        for term in terms:
            if term.startswith("?") and term not in bound:
                raise ValueError(f"the variable {term} is used but not introduced")

    def _test(self, condition: Condition, bound: frozenset[str]) -> Test:
        match condition:
            case Literal(predicate, arguments, positive):
                self._check(arguments, bound)
                return lambda facts, binding: (
                    (
                        tuple([binding.get(x, x) for x in arguments])
                        in facts.get(predicate, ())
                    )
                    == positive
                )
            case Equation((first, second), positive):
                self._check((first, second), bound)
                return lambda _, binding: (
                    (binding.get(first, first) == binding.get(second, second))
                    == positive
                )
            case All(parts):
                tests = [self._test(part, bound) for part in parts]
                return lambda facts, binding: all(t(facts, binding) for t in tests)
            case Some(parts):
                tests = [self._test(part, bound) for part in parts]
                return lambda facts, binding: any(t(facts, binding) for t in tests)
        if not condition.every:
            find = self._find(condition.variables, condition.body, bound)
            return lambda facts, binding: next(find(facts, binding), None) is not None
        names = tuple(name for name, _ in condition.variables)
        values = [self._of(type_) for _, type_ in condition.variables]
        test = self._test(condition.body, bound | set(names))
        return lambda facts, binding: all(
            test(facts, binding | dict(zip(names, chosen, strict=True)))
            for chosen in itertools.product(*values)
        )

    def _find(self, variables: Variables, condition: Condition, bound) -> Find:
        """A function that finds the objects for `variables` that fulfil a condition."""
        variables = tuple(variables)
        if isinstance(condition, Some):
            ways = [self._find(variables, part, bound) for part in condition.parts]
            return lambda facts, binding: itertools.chain.from_iterable(
                way(facts, binding) for way in ways
            )
        steps = self._steps(dict(variables), list(_conjuncts(condition)), bound)
        # An inner variable hides an outer one of its name.
        hidden = [name for name, _ in variables if name in bound]

        def find(facts: Facts, binding: Binding) -> Iterator[Binding]:
            known = {x: y for x, y in binding.items() if x not in hidden}
            bindings: Iterable[Binding] = (known,)
            for step in steps:
                bindings = _chain(step, facts, bindings)
            return iter(bindings)

        return find

    def _steps(
        self, types: dict[str, str], left: list[Condition], bound: frozenset[str]
    ) -> list[Find]:
        """Tests as soon as they can be made, else the atom with the fewest choices."""
        steps: list[Find] = []
        unknown = dict(types)
        known = frozenset(bound) - set(types)
        while left or unknown:
            ready = [c for c in left if not _free(c) & set(unknown)]
            for condition in ready:
                steps.append(_filter(self._test(condition, known)))
            left = [c for c in left if c not in ready]
            atoms = [c for c in left if isinstance(c, Literal) and c.positive]
            if atoms:
                best = min(atoms, key=lambda atom: self._choices(atom, unknown))
                self._check(best.arguments, known | set(unknown))
                steps.append(self._join(best, known, unknown))
                left.remove(best)
                new = set(best.arguments) & set(unknown)
            elif unknown:
                new = {next(iter(unknown))}
                steps.append(_each(*new, self._of(unknown[next(iter(new))])))
            else:
                continue
            known |= new
            unknown = {name: t for name, t in unknown.items() if name not in new}
        return steps

    def _choices(self, atom: Literal, unknown: Mapping[str, str]) -> float:
        """Roughly how many facts can match an atom."""
        rows = len(self.start.facts.get(atom.predicate, ()))
        is_known = [argument not in unknown for argument in atom.arguments]
        return rows / 10 ** sum(is_known)

    def _join(self, atom: Literal, known: frozenset[str], unknown) -> Find:
        predicate, arguments = atom.predicate, atom.arguments
        fixed = [(i, x) for i, x in enumerate(arguments) if x not in unknown]
        free = [
            (i, x, self.members.get(unknown[x], frozenset()))
            for i, x in enumerate(arguments)
            if x in unknown
        ]

        def join(facts: Facts, binding: Binding) -> Iterator[Binding]:
            wanted = [(i, binding.get(x, x)) for i, x in fixed]
            for row in facts.get(predicate, ()):
                if any(row[i] != value for i, value in wanted):
                    continue
                extended = dict(binding)
                for i, name, members in free:
                    # A variable may stand twice in an atom.
                    value = extended.setdefault(name, row[i])
                    if value != row[i] or value not in members:
                        break
                else:
                    yield extended

        return join


def _members(types: Mapping[str, str], objects: Mapping[str, str]) -> dict:
    members: dict[str, set[str]] = {type_: set() for type_ in types}
    for name, type_ in objects.items():
        # Bounded, as types of one another would go round for ever.
        for _ in range(len(types)):
            members[type_].add(name)
            type_ = types[type_]
        members[ROOT].add(name)
    return {type_: frozenset(names) for type_, names in members.items()}


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, All):
        for part in condition.parts:
            yield from _conjuncts(part)
    else:
        yield condition


def _free(condition: Condition) -> set[str]:
    """The variables that a condition does not introduce itself."""
    match condition:
        case Literal(_, terms, _) | Equation(terms, _):
            return {term for term in terms if term.startswith("?")}
        case All(parts) | Some(parts):
            return set().union(*map(_free, parts))
        case Quantified(variables, body, _):
            return _free(body) - {name for name, _ in variables}


def _terms(condition: Condition) -> frozenset[str]:
    """All that a condition names, variables too."""
    match condition:
        case Literal(_, terms, _) | Equation(terms, _):
            return frozenset(terms)
        case All(parts) | Some(parts):
            return frozenset().union(*map(_terms, parts))
    return _terms(condition.body)


def _chain(step: Find, facts: Facts, found: Iterable[Binding]) -> Iterator[Binding]:
    for binding in found:
        yield from step(facts, binding)


def _filter(test: Test) -> Find:
    def keep(facts: Facts, binding: Binding) -> Iterator[Binding]:
        if test(facts, binding):
            yield binding

    return keep


def _each(name: str, values: list[str]) -> Find:
    return lambda _, binding: ({**binding, name: value} for value in values)


def _ground(literal: Literal, binding: Binding) -> Arguments:
    return tuple([binding.get(x, x) for x in literal.arguments])


def _is_empty(action: _Compiled, arguments: Arguments) -> bool:
    """Whether a move changes nothing: its preconditions state all of its effects."""
    binding = dict(zip(action.names, arguments, strict=True))
    required = {
        (part.predicate, _ground(part, binding), part.positive)
        for part in action.required
    }
    effects = {
        (literal.predicate, _ground(literal, binding), literal.positive)
        for literal, _, _ in action.effects
    }
    return all(
        effect in required or (not effect[2] and (*effect[:2], True) in effects)
        for effect in effects
    )
