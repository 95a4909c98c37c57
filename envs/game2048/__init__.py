from envs.game2048.env import Game2048

__all__ = ["Game2048"]
