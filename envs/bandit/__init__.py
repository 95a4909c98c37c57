from envs.bandit.env import Bandit

__all__ = ["Bandit"]
