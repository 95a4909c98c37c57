"""Memory that a rollout needs at least, from the sizes of its arrays.

In: rows, lengths and the model's sizes. Out: bytes, or an error before anything is
compiled. `ragen_jax.memory` measures what a run really takes, by compiling it.
"""

import dataclasses

# Per token of a trajectory: id, turn and log-probability with 4 bytes, mask with 1.
_BYTES_PER_TOKEN = 13
_GB = 1e9


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Arrays of a rollout that exist at the same time.

    Attributes:
      num_rows: episodes.
      trajectory_tokens: `T`, slots of a row.
      cached_tokens: sampled tokens of a row whose keys and values are kept, at most.
      cache_bytes: per cached token, of all layers.
    """

    num_rows: int
    trajectory_tokens: int
    cached_tokens: int
    cache_bytes: int

    @property
    def trajectory(self) -> int:
        """Bytes of the trajectory's arrays with an entry per token."""
        return self.num_rows * self.trajectory_tokens * _BYTES_PER_TOKEN

    @property
    def cache(self) -> int:
        """Bytes of the keys and values of sampled tokens."""
        return self.num_rows * self.cached_tokens * self.cache_bytes

    def check(self, key: str, memory: int) -> None:
        """Refuse rows that cannot fit.

        Args:
          key: configuration keys whose product is the number of rows.
          memory: bytes of all devices together.

        Raises:
          ValueError: names the expected bytes.
        """
        needed = self.trajectory + self.cache
        if needed > memory:
            raise ValueError(
                f"{key} = {self.num_rows} episodes at a time need at least "
                f"{needed / _GB:,.1f} GB, by the sizes of their arrays "
                f"({self.trajectory / _GB:,.1f} GB of trajectories, "
                f"{self.cache / _GB:,.1f} GB of keys and values), and there are "
                f"{memory / _GB:,.1f} GB; use fewer (launch.plan says what fits)"
            )
