"""gymnax is the whole gymnax, but the packages that draw its games come when used."""

import subprocess
import sys

import pytest

from envs.light_gymnax import deferred, import_light

DRAW = """
import sys
{first}
import {second}
loaded = {{"matplotlib", "pandas", "scipy", "seaborn"}} & set(sys.modules)
import jax, gymnax
from gymnax.environments import environment, spaces
from gymnax.environments.misc import pong

assert gymnax.environments.spaces is spaces
env, params = gymnax.make("ragen/Sokoban-v0")
assert isinstance(env, environment.Environment)
assert type(env) is envs.ENVIRONMENTS["sokoban"]
game, _ = gymnax.make("Pong-misc")
_, state = game.reset(jax.random.key(0))
print(type(game.render(state, game.default_params)).__name__)
import matplotlib.pyplot as plt, seaborn
assert plt.subplots is pong.plt.subplots
assert seaborn.color_palette is pong.sns.color_palette
print(*sorted(loaded))
"""


@pytest.mark.parametrize("order", [("", "envs"), ("import gymnax", "envs")])
def test_gymnax_plays_and_draws_in_any_order(order, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    code = DRAW.format(first=order[0], second=order[1])
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    drawn, loaded = done.stdout.splitlines()
    assert drawn == "AxesImage"
    # A user who imports gymnax first has loaded them all.
    assert loaded == ("matplotlib pandas scipy seaborn" if order[0] else "")


PACKAGE = {
    "slow_package/__init__.py": "NAME = 'slow'",
    "slow_package/part.py": "def answer():\n    return 42",
    "fails.py": "import slow_package\n\nraise ZeroDivisionError",
    "at_once/__init__.py": "from slow_package import part\n\nANSWER = part.answer()",
    "quick.py": "import slow_package.part as a\nfrom slow_package import part as b",
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for path, text in PACKAGE.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    yield
    for name in ("slow_package.part", "slow_package", "quick", "at_once"):
        sys.modules.pop(name, None)


def test_a_deferred_package_is_imported_at_its_first_use(packages):
    with deferred("slow_package"):
        import quick
    assert not [name for name in sys.modules if name.startswith("slow_package")]
    assert quick.a.answer() == 42
    import slow_package.part

    assert quick.b.answer is slow_package.part.answer
    with pytest.raises(AttributeError, match="no attribute 'question'"):
        quick.a.question  # noqa: B018


def test_a_package_imported_before_is_used_as_it_is(packages):
    import slow_package.part

    with deferred("slow_package"):
        import quick
    assert quick.a is quick.b is slow_package.part


def test_a_failed_import_leaves_nothing_behind(packages):
    finders = list(sys.meta_path)
    with pytest.raises(ZeroDivisionError), deferred("slow_package"):
        import fails  # noqa: F401
    assert sys.meta_path == finders
    assert "slow_package" not in sys.modules


def test_what_uses_a_package_at_once_is_imported_with_it(packages):
    module = import_light("at_once", ["slow_package"])
    assert module.ANSWER == 42
    assert module is sys.modules["at_once"]
    assert module.part is sys.modules["slow_package.part"]
