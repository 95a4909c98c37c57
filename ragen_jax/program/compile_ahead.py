"""Compiles the update while the first evaluation and rollout are compiled and played.

XLA compiles a program on one core. A thread compiles the update, and the stage that
needs it waits for it. JAX finds what the thread compiled when the program is called;
were the call to differ, it would compile it then.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator

from ml_collections import ConfigDict

from ragen_jax.devices import exchange
from ragen_jax.devices.sharding import platform_of
from ragen_jax.diagnostics.timing import Compilation, Timed, compilations, count_here
from ragen_jax.program.build import Program
from ragen_jax.program.lowering import describe_batch, lower
from ragen_jax.tasks.task import HostTask

STAGE = "update"


class CompileAhead:
    """Starts to compile when it is made. Use it as a context manager.

    On one machine's CPU only: compilers for GPUs measure kernels on the device, and
    processes compile in step. Games in Python compile as their observations come.

    Args:
      config: validated.
      program: of it.
      timed: measures the stages of an iteration.
      num_left: iterations to come; a run that is finished compiles nothing.
    """

    def __init__(
        self, config: ConfigDict, program: Program, timed: Timed, num_left: int
    ):
        self._config, self._program, self._timed = config, program, timed
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "compile")
        is_due = (
            num_left > 0
            and exchange.is_alone()
            and platform_of(program.batch_sharding.mesh) == "cpu"
            and not any(isinstance(task, HostTask) for task in program.tasks)
        )
        self._pending = self._thread.submit(self._compile) if is_due else None

    def __enter__(self) -> "CompileAhead":
        return self

    def __exit__(self, *_) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _compile(self) -> Compilation:
        with compilations(apart=True) as compiled:
            batch = describe_batch(self._config, self._program)
            (lowered,) = lower(self._program, STAGE, batch)
            lowered.compile()
        return compiled

    @contextlib.contextmanager
    def timed(self, timing: dict[str, float], stage: str) -> Iterator[None]:
        """`timed`, once what the stage runs is compiled, which counts for the stage."""
        with self._timed(timing, stage):
            if stage == STAGE and self._pending is not None:
                pending, self._pending = self._pending, None
                count_here(pending.result())
            yield
