"""gymnax, imported without the packages that draw its games.

For pictures of five of its games gymnax imports matplotlib and seaborn, and with them
pandas and SciPy, which takes longer than to import JAX. Nothing here draws. The rest of
gymnax is imported as always, and its games can still be drawn.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Collection, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec


class _Deferred(types.ModuleType):
    """Stands for a module, which is imported at the first use of one of its names."""

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self.__name__), name)


class _Placeholders(MetaPathFinder, Loader):
    """Finds empty modules in place of those of some packages, and lists them."""

    def __init__(self, packages: set[str]):
        self._packages = packages
        self.modules = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        self.modules.append(module)


@contextlib.contextmanager
def deferred(*packages: str) -> Iterator[None]:
    """Modules imported inside import these packages when they first use them.

    They keep placeholders under the names that they bind. The placeholders leave
    `sys.modules` at the end, so everybody else imports the packages as always; packages
    imported before are used as they are. Whole modules can be deferred: after `from
    package.module import function`, the function could not be called.
    """
    finder = _Placeholders({name for name in packages if name not in sys.modules})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module in finder.modules:
            del sys.modules[module.__name__]
            module.__class__ = _Deferred


def import_light(name: str, packages: Collection[str]) -> types.ModuleType:
    """Import a module with these packages deferred, or with them if it needs them."""
    try:
        with deferred(*packages):
            return importlib.import_module(name)
    except (AttributeError, TypeError):
        # It used a placeholder while it was imported.
        top = name.partition(".")[0]
        for module in [m for m in sys.modules if m.partition(".")[0] == top]:
            del sys.modules[module]
        return importlib.import_module(name)


registration = import_light("gymnax.registration", ("matplotlib", "seaborn"))
