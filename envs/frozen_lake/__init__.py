from envs.frozen_lake.env import FrozenLake

__all__ = ["FrozenLake"]
