from envs.countdown.env import Countdown

__all__ = ["Countdown"]
