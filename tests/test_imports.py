"""The architecture, read from the source: who may import whom, and how long things are.

Imports point one way, from the entry points up to what imports nothing; the floors are
those of docs/architecture.md.
"""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = (
    "envs",
    "ragen_jax",
    "configs",
    "studies",
    "launch",
    "benchmarks",
    "tests",
)
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70

# The floors of the code base, in reading order: a file imports from its own package and
# from floors above its own. One entry per package and top file, so that a new
# one fails here until it has a place.
FLOORS = (
    ("ragen_jax.terminal",),
    (
        "envs",
        "ragen_jax.host_games",
        "ragen_jax.types",
        "ragen_jax.rngs",
        "ragen_jax.registry",
    ),
    (
        "configs",
        "ragen_jax.text",
        "ragen_jax.models",
        "ragen_jax.algo",
    ),
    ("ragen_jax.devices",),
    ("ragen_jax.rollout", "ragen_jax.learner"),
    ("ragen_jax.tasks", "ragen_jax.diagnostics"),
    ("ragen_jax.config",),
    ("ragen_jax.runs",),
    ("ragen_jax.program",),
    ("ragen_jax.evaluation", "ragen_jax.report", "ragen_jax.memory"),
    ("ragen_jax.train", "ragen_jax.sft", "ragen_jax.serve"),
    ("ragen_jax.sweeps",),
    ("studies",),
    ("launch",),
    ("benchmarks", "tests"),
)
FLOOR_OF = {place: i for i, places in enumerate(FLOORS) for place in places}
# What the floors would allow and is not wanted: place -> places it must not see.
FORBIDDEN = {
    "ragen_jax": ("configs",),
    "ragen_jax.host_games": ("envs", "configs", "ragen_jax.types", "ragen_jax.rngs"),
    # Host games are played through `rollout/host`.
    **{
        f"ragen_jax.{place}": ("ragen_jax.host_games",)
        for place in ("evaluation", "program", "sft", "tasks")
    },
    "ragen_jax.models": ("envs",),
    "ragen_jax.algo": ("envs", "ragen_jax.types"),
    "ragen_jax.learner": ("envs", "ragen_jax.text"),
}
# The package's own `__init__` imports nothing of ours: it lies below every floor.
TOPMOST = "ragen_jax"
NAMES_OF_TOPMOST = {f"{TOPMOST}.__version__", f"{TOPMOST}.install_command"}

# Third-party package -> the only packages of ours that may import it.
CONFINED = {"gymnax": ("envs", "benchmarks", "tests")}


def source_files(*packages):
    return sorted(
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    )


@functools.cache
def parse(file):
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=file)


def module_name(file):
    name = file.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def imported_modules(tree):
    """Absolute names of everything imported anywhere in a file, with line numbers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            # `from ragen_jax import types` names the module `ragen_jax.types`.
            yield from (
                (f"{node.module}.{alias.name}", node.lineno) for alias in node.names
            )


def is_within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def place_of(name):
    """The package or top file a module belongs to, None if it has no place."""
    return next((place for place in FLOOR_OF if is_within(name, place)), None)


def violations(module, tree):
    place = place_of(module)
    if place is None and module != TOPMOST:
        yield f"{module} has no place: put it in a package, or give it a floor here"
        return
    for name, line in imported_modules(tree):
        top = name.split(".")[0]
        if top in CONFINED and module.split(".")[0] not in CONFINED[top]:
            yield f"line {line}: only {CONFINED[top]} may import {top}, not {module}"
        if top not in PACKAGES or name in NAMES_OF_TOPMOST:
            continue
        other = place_of(name)
        if other == place or FLOOR_OF[place] == len(FLOORS) - 1:
            continue
        forbidden = [
            p
            for owner in FORBIDDEN
            if is_within(module, owner)
            for p in FORBIDDEN[owner]
        ]
        is_above = other is not None and FLOOR_OF[other] < FLOOR_OF[place]
        if not is_above or other in forbidden:
            yield f"line {line}: {module} may not import {name}"


# What every host game may import of `ragen_jax.host_games`, besides its own package.
SHARED_BY_GAMES = ("base", "common")
# Packages of `ragen_jax.host_games` that are not games.
NOT_GAMES = {"common", "workers"}


def helpers_of_others(module, tree):
    """Imports of a host game from another game's package."""
    root = "ragen_jax.host_games"
    package = module.removeprefix(f"{root}.").split(".")[0]
    for name, line in imported_modules(tree):
        allowed = (*SHARED_BY_GAMES, package)
        if is_within(name, root) and name.split(".")[2] not in allowed:
            yield f"line {line}: {module} may not import {name}"


def test_host_games_import_none_of_each_others_helpers():
    folder = ROOT / "ragen_jax" / "host_games"
    games = {path.parent.name for path in folder.glob("*/__init__.py")} - NOT_GAMES
    assert len(games) >= 7
    for game in games:
        for file in source_files(f"ragen_jax/host_games/{game}"):
            assert not list(helpers_of_others(module_name(file), parse(file)))
    source = "from ragen_jax.host_games.search.client import HttpRetriever"
    assert list(helpers_of_others("ragen_jax.host_games.lean.game", ast.parse(source)))


def names_of(module):
    """What a module of ours offers: its own names, or for a package its modules too."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    yield from (inner.stem for inner in path.glob("*"))
    for node in ast.walk(parse(file.relative_to(ROOT).as_posix())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.alias():
                yield node.asname or node.name


def missing_names(tree):
    """Names of ours that a file imports, at its top or in a function, and are gone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in PACKAGES:
            wanted = {alias.name for alias in node.names} - {"*"}
            yield from (f"{node.module}.{n}" for n in wanted - {*names_of(node.module)})


def test_every_imported_name_exists():
    """Benchmarks import inside functions, which no other test may ever call."""
    missing = {f: [*missing_names(parse(f))] for f in source_files(*PACKAGES)}
    assert not {file: names for file, names in missing.items() if names}
    source = "def f():\n    from ragen_jax.rollout.parts import run_partly"
    assert [*missing_names(ast.parse(source))] == ["ragen_jax.rollout.parts.run_partly"]


def test_imports_point_one_way():
    found = {
        f: [*violations(module_name(f), parse(f))] for f in source_files(*PACKAGES)
    }
    assert len(found) > 100
    assert not {file: lines for file, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("envs.bandit.env", "from ragen_jax import types"),
        ("envs.bandit.env", "def f():\n    import ragen_jax.types"),
        ("ragen_jax.algo.losses", "from ragen_jax.models import families"),
        ("ragen_jax.algo.losses", "import ragen_jax"),
        ("ragen_jax.algo.losses", "from ragen_jax import types"),
        ("ragen_jax.text.prompts", "from ragen_jax.rollout.decode import x"),
        ("ragen_jax.train", "from configs import base"),
        ("ragen_jax.train", "from launch import play"),
        ("ragen_jax.text.prompts", "import gymnax"),
        ("configs.sokoban", "from ragen_jax import config"),
        ("ragen_jax.rollout.collect", "from ragen_jax.learner import update"),
        ("ragen_jax.learner.update", "from ragen_jax.text import answers"),
        ("ragen_jax.new_module", "import os"),
        ("ragen_jax.train", "from ragen_jax import new_module"),
    ],
)
def test_a_wrong_import_is_seen(module, source):
    assert list(violations(module, ast.parse(source)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ragen_jax.text.prompts", "from envs.base import PlayBudget"),
        ("ragen_jax.algo.losses", "from ragen_jax.algo import masked"),
        ("ragen_jax.train", "from ragen_jax.learner.update import make_update"),
        ("ragen_jax.learner.state", "import jax, ragen_jax.types"),
        ("launch.train", "import configs.base"),
    ],
)
def test_a_right_import_is_not(module, source):
    assert not list(violations(module, ast.parse(source)))


def lengths(file):
    """Lines of a file and of its functions, by what they are called."""
    yield file, len((ROOT / file).read_text(encoding="utf-8").splitlines())
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (file, node.name), node.end_lineno - node.lineno + 1


def test_files_and_functions_are_short():
    """A longer file has two jobs: split it."""
    for file in source_files("envs", "ragen_jax", "configs", "launch"):
        for name, num_lines in lengths(file):
            limit = MAX_FILE_LINES if name == file else MAX_FUNCTION_LINES
            assert num_lines <= limit, (name, num_lines)


def test_the_page_on_architecture_has_the_same_floors():
    page = (ROOT / "docs" / "architecture.md").read_text()
    floors, number = {}, 0
    for floor, places in re.findall(r"(?m)^\| (\d*) ?\| (`[^|]*) \|", page):
        number = int(floor or number)
        for path in re.findall(r"`([^`]+)`", places):
            place = path.removesuffix("/").removesuffix(".py").replace("/", ".")
            floors.setdefault(place, number)
    assert floors.items() >= {p: i + 1 for p, i in FLOOR_OF.items()}.items()
