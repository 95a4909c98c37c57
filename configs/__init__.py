"""Settings: every key (`base.py`), a file per task, and presets."""

# Game -> the task file that plays it with its limits and options.
TASK_FILES = {
    "alfworld": "alfworld",
    "bandit": "bandit",
    "coding": "coding",
    "countdown": "countdown",
    "cube2x2": "cube2x2",
    "echo": "world",
    "frozen_lake": "frozen_lake",
    "game2048": "game2048",
    "lean": "lean",
    "math": "mathqa",
    "search": "search",
    "sokoban": "sokoban",
    "sudoku": "sudoku",
    "webshop": "webshop",
}
