"""The architecture, read from the source: who may import whom, and how long things are.

Imports point one way: games know nothing of prompts or models, array maths knows
nothing of training, and only `train` and the like see everything.
"""

import ast
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("envs", "ragen_jax", "configs", "launch", "benchmarks", "tests")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70

# Module -> prefixes it may import from this repository; the longest matching entry
# counts. A package may always import itself.
ALLOWED = {
    "envs": (),
    "ragen_jax.types": (),
    "ragen_jax.rngs": (),
    "ragen_jax.text": ("envs", "ragen_jax.types"),
    "ragen_jax.models": ("ragen_jax.types",),
    "ragen_jax.rollout": (
        "envs",
        "ragen_jax.text",
        "ragen_jax.models",
        "ragen_jax.types",
        "ragen_jax.rngs",
    ),
    "ragen_jax.algo": ("ragen_jax.types",),
    "ragen_jax.learner": (
        "ragen_jax.models",
        "ragen_jax.algo",
        "ragen_jax.types",
        "ragen_jax.rngs",
    ),
    "ragen_jax.diagnostics": ("ragen_jax.models", "ragen_jax.algo", "ragen_jax.types"),
    "ragen_jax.report": (),
    "ragen_jax.evaluation": (
        "envs",
        "ragen_jax.text",
        "ragen_jax.rollout",
        "ragen_jax.types",
    ),
    "ragen_jax": ("envs", "ragen_jax"),
    "configs": (),
    "launch": ("envs", "ragen_jax", "configs"),
    "benchmarks": PACKAGES,
    "tests": PACKAGES,
}

# Third-party package -> the only packages of ours that may import it.
CONFINED = {"gymnax": ("envs", "benchmarks", "tests")}

# Files and functions that may be longer, and why.
LONG_FILES = {"configs/base.py": "the one place with defaults, each with its comment"}
LONG_FUNCTIONS = {
    ("configs/base.py", "get_config"): "a flat list of defaults, each with its comment",
}


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


def owner(name):
    """The entry of `ALLOWED` a module falls under."""
    return max((entry for entry in ALLOWED if is_within(name, entry)), key=len)


def violations(module, tree):
    entry = owner(module)
    # The catch-all entry of a package is its top-level modules, not its name.
    allowed = (*ALLOWED[entry], entry)
    for name, line in imported_modules(tree):
        top = name.split(".")[0]
        if top in PACKAGES:
            if not any(is_within(name, prefix) for prefix in allowed):
                yield f"line {line}: {module} may not import {name}"
        elif top in CONFINED and module.split(".")[0] not in CONFINED[top]:
            yield f"line {line}: only {CONFINED[top]} may import {top}, not {module}"


@pytest.mark.parametrize("file", source_files(*PACKAGES))
def test_imports_point_one_way(file):
    assert not list(violations(module_name(file), parse(file)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("envs.bandit", "from ragen_jax import types"),
        ("envs.bandit", "def f():\n    import ragen_jax.types"),
        ("ragen_jax.algo.losses", "from ragen_jax.models import qwen2"),
        ("ragen_jax.algo.losses", "import ragen_jax"),
        ("ragen_jax.text.prompts", "from ragen_jax.rollout.decode import x"),
        ("ragen_jax.train", "from configs import base"),
        ("ragen_jax.train", "from launch import play"),
        ("ragen_jax.text.prompts", "import gymnax"),
        ("configs.sokoban", "from ragen_jax import config"),
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


@pytest.mark.parametrize("file", source_files("envs", "ragen_jax", "configs", "launch"))
def test_files_and_functions_are_short(file):
    num_lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
    is_short = num_lines <= MAX_FILE_LINES or file in LONG_FILES
    assert is_short, "split the file: it has two jobs"
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            is_excused = (file, node.name) in LONG_FUNCTIONS
            assert length <= MAX_FUNCTION_LINES or is_excused, (node.name, length)
