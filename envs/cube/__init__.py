from envs.cube.env import Cube2x2

__all__ = ["Cube2x2"]
