"""Reads and speaks the grammar of an ALFWorld game: its commands and answers.

In: the text of a grammar; a `Scene`, the facts that it speaks about. Out: sentences.
Does not know what is possible; `logic` does.

A grammar is a list of blocks, `grammar :: \"\"\"JSON\"\"\";` and `action NAME {
template :: "..."; feedback :: "..."; grammar :: ...; }`. The JSON has a symbol's rules,
of which the first whose `condition` holds is used. In their texts `#symbol#` is
replaced, `{r.name}` is a value, `{r.name | query}` one for every match of the query,
and `[{... | query}]` a list of them, put together by the symbols `list_empty`,
`list_separator` and `list_last_separator`.

Source: TextWorld's PDDL games (textworld/envs/pddl). Its values are Python's `eval`;
here they are attributes, quoted words, `+` and `or`. A bracket that is left over is
text here and ends the text there.
"""

import ast
import dataclasses
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping

from ragen_jax.host_games.alfworld.logic import Arguments, State

_TOKEN = re.compile(
    r'(?P<blank>\s+|#[^\n]*)|"""(?P<block>.*?)"""|"(?P<text>[^"]*)"'
    r"|(?P<sign>::|[{};])|(?P<name>[\w/-]+)",
    re.DOTALL,
)
_PART = re.compile(
    r"\[\{(?P<list>[^{}]*)\}\]|\{(?P<value>[^{}]*)\}|#(?P<symbol>[\w()/!<>\-\s,.]+)#"
)
_ATOM = re.compile(r"\s*([\w/]+)\s*\(([^()]*)\)\s*")
_ATTRIBUTES = ("name", "id", "type", "definite", "indefinite")
# Negations of a query hold where an action has made a fact false.
NEGATION = "not_"
# Symbols within symbols; ALFRED's has 4.
MAX_DEPTH = 30

Placeholder = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Atom:
    """An atom of a query; placeholders are pairs of a name and a type."""

    predicate: str
    placeholders: tuple[Placeholder, ...]


@dataclasses.dataclass(frozen=True)
class Value:
    """A symbol or an expression, once or for every match of a query."""

    symbol: str | None
    expression: ast.expr | None
    query: tuple[Atom, ...]
    is_list: bool


@dataclasses.dataclass(frozen=True)
class Rule:
    """A text with its condition, which without atoms always holds."""

    condition: tuple[Atom, ...]
    parts: tuple[str | Value, ...]


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Rules by symbol; template of the command and answer by action."""

    rules: dict[str, tuple[Rule, ...]]
    templates: dict[str, tuple[str | Value, ...]]
    answers: dict[str, tuple[str | Value, ...]]


@dataclasses.dataclass(frozen=True)
class Scene:
    """What sentences are about.

    Attributes:
      state: the facts.
      members: objects by type.
      names: of objects, as players read them.
      matched: objects by placeholder.
    """

    state: State
    members: Mapping[str, Collection[str]]
    names: Mapping[str, str]
    matched: Mapping[Placeholder, str]


@functools.lru_cache(maxsize=64)
def read_grammar(text: str) -> Grammar:
    """The grammar of a text.

    Raises:
      ValueError: the text is not a grammar, or it uses symbols without rules.
    """
    rules: dict[str, list] = {}
    templates, answers = {}, {}
    tokens = _tokens(text)
    for kind, word in tokens:
        if (kind, word) == ("name", "grammar"):
            _expect(tokens, "sign", "::")
            rules |= _read_json(_expect(tokens, "block"))
            _expect(tokens, "sign", ";")
        elif (kind, word) == ("name", "action"):
            name = _expect(tokens, "name").lower()
            parts = _read_action(tokens, name)
            templates[name] = read_text(parts["template"])
            answers[name] = read_text(parts["feedback"])
            rules |= _read_json(parts.get("grammar", "{}"))
        else:
            raise ValueError(f"the grammar has {word[:40]!r} where a block would begin")
    grammar = Grammar(
        {symbol: _read_rules(symbol, listed) for symbol, listed in rules.items()},
        templates,
        answers,
    )
    _check_symbols(grammar)
    return grammar


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(
                f"the grammar cannot be read from {text[position:][:40]!r}"
            )
        position = match.end()
        if match.lastgroup != "blank":
            yield match.lastgroup, match[match.lastgroup]


def _expect(
    tokens: Iterator[tuple[str, str]], kind: str, word: str | None = None
) -> str:
    token = next(tokens, ("end", ""))
    if token[0] != kind or word not in (None, token[1]):
        raise ValueError(
            f"the grammar has {token[1][:40]!r} where {word or f'a {kind}'} is expected"
        )
    return token[1]


def _read_action(tokens: Iterator[tuple[str, str]], name: str) -> dict[str, str]:
    _expect(tokens, "sign", "{")
    parts = {}
    for kind, word in tokens:
        if (kind, word) == ("sign", "}"):
            break
        if word not in ("template", "feedback", "grammar", "pddl"):
            raise ValueError(f"the action {name} of the grammar has a part {word!r}")
        _expect(tokens, "sign", "::")
        is_text = word in ("template", "feedback")
        parts[word] = _expect(tokens, "text" if is_text else "block")
        _expect(tokens, "sign", ";")
    if not {"template", "feedback"} <= set(parts):
        raise ValueError(
            f"the action {name} of the grammar has no template or feedback"
        )
    return parts


def _read_json(block: str) -> dict[str, list]:
    lines = (line for line in block.split("\n") if not line.lstrip().startswith("#"))
    try:
        rules = json.loads("\n".join(lines))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"a block of the grammar is not JSON: {error}") from error
    if not isinstance(rules, dict):
        raise ValueError("a block of the grammar is not a JSON object of symbols")
    return rules


def _read_rules(symbol: str, listed: object) -> tuple[Rule, ...]:
    rules = []
    for rule in listed if isinstance(listed, list) else [None]:
        fields = rule if isinstance(rule, dict) else {}
        text, condition = fields.get("rhs"), fields.get("condition", "")
        if not isinstance(text, str) or not isinstance(condition, str):
            raise ValueError(
                f'the symbol {symbol} of the grammar is not a list of {{"rhs": "text"}}'
            )
        rules.append(Rule(_read_query(condition), read_text(text)))
    return tuple(rules)


def read_text(text: str) -> tuple[str | Value, ...]:
    """The parts of a rule's text or of a template.

    Raises:
      ValueError: an expression or a query in it cannot be read.
    """
    # TextWorld skips blanks at the beginning.
    text = text.lstrip()
    parts, position = [], 0
    for match in _PART.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["symbol"] is not None:
            parts.append(Value(match["symbol"], None, (), is_list=False))
        else:
            is_list = match["list"] is not None
            inside = match["list"] if is_list else match["value"]
            parts.append(_read_value(inside, is_list))
    parts.append(text[position:])
    return tuple(part for part in parts if part != "")


def _read_value(text: str, is_list: bool) -> Value:
    expression, _, query = (part.strip() for part in text.partition("|"))
    atoms = _read_query(query)
    if re.fullmatch(r"#[^#]+#", expression):
        return Value(expression[1:-1], None, atoms, is_list)
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{{{text}}} of the grammar is not an expression") from error
    for node in ast.walk(tree):
        is_known = isinstance(
            node, ast.Name | ast.BoolOp | ast.Or | ast.BinOp | ast.Add | ast.Load
        )
        is_known |= isinstance(node, ast.Constant) and isinstance(node.value, str)
        is_known |= isinstance(node, ast.Attribute) and (
            isinstance(node.value, ast.Name) and node.attr in _ATTRIBUTES
        )
        if not is_known:
            raise ValueError(
                f"{{{text}}} of the grammar is not a sum of quoted words and "
                f"attributes ({', '.join(_ATTRIBUTES)})"
            )
    return Value(None, tree, atoms, is_list)


def _read_query(text: str) -> tuple[Atom, ...]:
    atoms = []
    for part in text.split("&") if text.strip() else []:
        match = _ATOM.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()[:80]!r} of the grammar is not an atom")
        placeholders = []
        for argument in match[2].split(",") if match[2].strip() else []:
            name, colon, type_ = (word.strip() for word in argument.partition(":"))
            if not name or (colon and not type_):
                raise ValueError(f"{part.strip()[:80]!r} of the grammar is not an atom")
            placeholders.append((name, type_ or name.rstrip("'")))
        atoms.append(Atom(match[1], tuple(placeholders)))
    return tuple(atoms)


def _check_symbols(grammar: Grammar) -> None:
    texts = [
        read_text("#intro#"),
        *grammar.templates.values(),
        *grammar.answers.values(),
    ]
    seen: set[str] = set()
    while texts:
        for part in texts.pop():
            if isinstance(part, str):
                continue
            symbols = {"list_empty", "list_separator", "list_last_separator"}
            symbols = (symbols if part.is_list else set()) | {part.symbol} - {None}
            for symbol in sorted(symbols - seen):
                if symbol not in grammar.rules:
                    raise ValueError(
                        f"the grammar has no rule for the symbol #{symbol}#"
                    )
                texts += [rule.parts for rule in grammar.rules[symbol]]
            seen |= symbols


def speak(
    grammar: Grammar, parts: tuple[str | Value, ...], scene: Scene, depth: int = 0
) -> str:
    """A text with everything in it replaced.

    Args:
      grammar: has the rules of its symbols.
      parts: of the text.
      scene: what it is about.
      depth: of the symbols that it stands in.

    Raises:
      ValueError: no rule of a symbol applies, symbols go round in circles, or a value
        is of something that is not there.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} symbols of the grammar are nested")
    words = []
    for part in parts:
        if isinstance(part, str):
            words.append(part)
            continue
        scenes = [scene]
        if part.query:
            scenes = [
                dataclasses.replace(scene, matched=matched)
                for matched in matches(part.query, scene)
            ]
        texts = [_value(grammar, part, inner, depth) for inner in scenes]
        words.append(
            _join(grammar, texts, scene, depth) if part.is_list else "".join(texts)
        )
    return "".join(words)


def _value(grammar: Grammar, part: Value, scene: Scene, depth: int) -> str:
    if part.expression is not None:
        return _evaluate(part.expression, scene)
    return _symbol(grammar, part.symbol, scene, depth)


def _symbol(grammar: Grammar, symbol: str, scene: Scene, depth: int) -> str:
    for rule in grammar.rules[symbol]:
        if not rule.condition or next(matches(rule.condition, scene), None) is not None:
            return speak(grammar, rule.parts, scene, depth + 1)
    raise ValueError(f"no rule of the grammar's symbol #{symbol}# applies")


def _join(grammar: Grammar, texts: list[str], scene: Scene, depth: int) -> str:
    if not texts:
        return _symbol(grammar, "list_empty", scene, depth)
    if len(texts) == 1:
        return texts[0]
    separator = _symbol(grammar, "list_separator", scene, depth)
    last = _symbol(grammar, "list_last_separator", scene, depth)
    return separator.join(texts[:-1]) + last + texts[-1]


def _evaluate(node: ast.expr, scene: Scene) -> str:
    match node:
        case ast.Constant():
            return node.value
        case ast.BinOp():
            return _evaluate(node.left, scene) + _evaluate(node.right, scene)
        case ast.BoolOp():
            values = [_evaluate(value, scene) for value in node.values]
            return next(filter(None, values), "")
    name = node.id if isinstance(node, ast.Name) else node.value.id
    # As in the original, the last object of a name counts, of any type.
    objects = [
        (type_, object_) for (x, type_), object_ in scene.matched.items() if x == name
    ]
    if not objects:
        raise ValueError(f"the grammar speaks of {name}, which is not there")
    type_, object_ = objects[-1]
    attribute = "name" if isinstance(node, ast.Name) else node.attr
    fixed = {"id": object_, "type": type_, "definite": "the", "indefinite": "a"}
    return fixed.get(attribute) or scene.names.get(object_, object_)


def matches(query: tuple[Atom, ...], scene: Scene) -> Iterator[dict[Placeholder, str]]:
    """The ways to match a query, in order; placeholders differ in their objects."""
    if not query:
        yield dict(scene.matched)
        return
    first, rest = query[0], query[1:]
    for row in sorted(_rows(first.predicate, scene.state)):
        if len(row) != len(first.placeholders):
            continue
        matched, is_match = dict(scene.matched), True
        for placeholder, value in zip(first.placeholders, row, strict=True):
            known = matched.get(placeholder)
            if known is None and value not in matched.values():
                is_match &= value in scene.members.get(placeholder[1], ())
                matched[placeholder] = value
            else:
                is_match &= known == value
        if is_match:
            yield from matches(rest, dataclasses.replace(scene, matched=matched))


def _rows(predicate: str, state: State) -> Collection[Arguments]:
    if predicate not in state.facts and predicate.startswith(NEGATION):
        positive = predicate.removeprefix(NEGATION)
        return [fact[1:] for fact in state.undone if fact[0] == positive]
    return state.facts.get(predicate, ())
