"""What the processes of one run exchange on the host.

In: values of this process. Out: the same values on every process. Programs that are
split over all devices exchange their numbers themselves; this file has the rest: arrays
that a host reads whole, rows that it holds, agreement on texts and signals. With one
process nothing is exchanged. Where a docstring says "together", every process must make
the call, in the same order as its other calls.
"""

import collections
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jaxtyping import Array

T = TypeVar("T")


def is_alone() -> bool:
    """Whether this is the only process."""
    return jax.process_count() == 1


def is_first() -> bool:
    """Whether this process writes what is written once."""
    return jax.process_index() == 0


def to_host(tree: T) -> T:
    """`jax.device_get` of whole arrays, whichever process holds their parts; together.

    An array that spans processes is sent to all of them.
    """
    if is_alone():
        return jax.device_get(tree)
    return jax.tree.map(_whole, tree)


def to_local_devices(tree: T) -> T:
    """The same arrays, whole, on a device of this process; together.

    With one process they stay where they are.
    """
    if is_alone():
        return tree
    return jax.tree.map(jnp.asarray, to_host(tree))


def _whole(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return jax.device_get(x)
    return multihost_utils.process_allgather(x, tiled=True)


def local_rows(array: Array) -> np.ndarray:
    """The rows that devices of this process hold, in their order.

    Args:
      array: split along its first axis alone.
    """
    if array.is_fully_addressable:
        return jax.device_get(array)
    # Devices that share rows hold copies.
    parts = {s.index[0].start or 0: s.data for s in array.addressable_shards}
    return np.concatenate([jax.device_get(parts[start]) for start in sorted(parts)])


def local_row_numbers(sharding: NamedSharding, num_rows: int) -> np.ndarray:
    """Numbers, from 0, of the rows that `local_rows` gives of `num_rows` rows."""
    parts = sharding.addressable_devices_indices_map((num_rows,)).values()
    indices = {index[0].indices(num_rows) for index in parts}
    return np.concatenate([np.arange(*index) for index in sorted(indices)])


def from_local_rows(rows: np.ndarray, like: Array) -> Array:
    """An array split like another one, from the rows of each process; together.

    Args:
      rows: in the order of `local_rows(like)`.
      like: gives the number of rows and the devices.
    """
    if is_alone():
        return jax.device_put(rows, like.sharding)
    shape = (like.shape[0], *rows.shape[1:])
    return jax.make_array_from_process_local_data(like.sharding, rows, shape)


def check_devices() -> None:
    """Refuse processes with different numbers of devices; nothing is exchanged.

    Raises:
      ValueError: names two of them.
    """
    counts = collections.Counter(device.process_index for device in jax.devices())
    for number, count in counts.items():
        if count != counts[0]:
            raise ValueError(
                f"process {number} has {count} devices, process 0 has {counts[0]}; "
                "give all processes equally many (GPUs that are visible, or XLA_FLAGS)"
            )


def gather(value: Any) -> list[Any]:
    """A JSON-able value of every process, in their order; together."""
    if is_alone():
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(text.size))
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: text.size] = text
    texts = multihost_utils.process_allgather(padded)
    pairs = zip(texts, lengths, strict=True)
    return [json.loads(row[:length].tobytes()) for row, length in pairs]


def first_does(action: Callable[[], T]) -> T | None:
    """Call `action` in the first process only; together, and all wait for it.

    Returns:
      Its result in the first process, None in the others.

    Raises:
      ValueError, OSError: those of `action`; a ValueError with its sentence elsewhere.
    """
    if is_alone():
        return action()
    result, failure = None, None
    if is_first():
        try:
            result = action()
        except (ValueError, OSError) as error:
            failure = error
    sentence = gather(failure and str(failure))[0]
    if failure is not None:
        raise failure
    if sentence is not None:
        raise ValueError(sentence)
    return result


def check_equal(here: dict[str, Any]) -> None:
    """Refuse values that differ between processes and must be equal; together.

    Args:
      here: JSON-able values of this process by name.

    Raises:
      ValueError: names what differs, with both values.
    """
    first, *others = gather(here)
    for number, other in enumerate(others, start=1):
        for name in sorted(first.keys() | other.keys()):
            one, two = first.get(name), other.get(name)
            if one != two:
                raise ValueError(
                    f"process {number} has another {name} than process 0: {two!r}, "
                    f"not {one!r}; start all processes with the same code, packages, "
                    "files and flags"
                )
