from envs.sudoku.env import Sudoku

__all__ = ["Sudoku"]
