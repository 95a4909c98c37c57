from envs.sokoban.env import Sokoban

__all__ = ["Sokoban"]
