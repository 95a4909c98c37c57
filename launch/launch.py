"""Makes `python launch/train.py` do what `python -m launch.train` does.

Python looks for modules beside the file that it runs, and so finds this file in place
of the package of its name; it is not imported otherwise.
"""

import importlib
import pathlib
import sys

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
del sys.modules[__name__]
importlib.import_module(__name__).end_at_interrupt()
