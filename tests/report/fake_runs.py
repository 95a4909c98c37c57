"""Run folders with every metric a report can draw, made up in milliseconds.

Two ways to train: one that learns, one whose reward spread, information and, later,
success fall. The numbers follow simple curves with noise; only their shape is real.
"""

import json
import pathlib

import numpy as np

NUM_ITERATIONS = 40
LEGEND = {"#": "wall", "_": "floor", "O": "target", "√": "box on target"}
LEGEND |= {"X": "box", "P": "you", "S": "you on a target", "7": "a digit"}
BOARDS = (
    ["######", "#_O_7#", "#_X__#", "#_P__#", "######"],
    ["######", "#_O__#", "#_XP_#", "#____#", "######"],
    ["######", "#_√__#", "#_P__#", "#____#", "######"],
)
HOSTILE = (
    "</script><script>window.hacked = 1</script>"
    "<img src=x onerror='window.hacked = 2'><!-- \u2028 {{data}} & \ud7ff\u0007"
)
FIRST_TURN = "collapse_first_turn_sample/"


def write_run(
    folder: pathlib.Path,
    *,
    seed: int = 0,
    collapses: bool = False,
    iterations: int = NUM_ITERATIONS,
    diagnostics: bool = True,
    tokens: bool = True,
    game: str = "Sokoban",
    planned: int | None = None,
) -> pathlib.Path:
    """One run folder; `diagnostics=False` and `tokens=False` are an older version's.

    `planned`: iterations of the settings; None: those that it has.
    """
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "env": {"name": game.lower(), "kwargs": {}},
        "model": {"path": "pocket"},
        "algo": {"advantage": "grpo"},
        "filter": {"keep_fraction": 1.0 if collapses else 0.25},
        "loss": {"clip_high": 0.2 if collapses else 0.28},
        "rollout": {"num_groups": 16, "group_size": 8},
        "optimizer": {"learning_rate": 2e-4},
        "train": {"num_iterations": iterations if planned is None else planned},
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng([seed, collapses])
    records = [
        _record(i, game, collapses, rng, diagnostics) for i in range(iterations + 1)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)
    (folder / "trajectories").mkdir()
    for i in range(1, iterations + 1):
        success = records[i][f"train/{game}/success"]
        episodes = [_episode(i, row, rng, success, tokens) for row in range(4)]
        text = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in episodes)
        path = folder / "trajectories" / f"iteration_{i:06d}.jsonl"
        path.write_text(text, encoding="utf-8")
    return folder


def write_two_series(folder: pathlib.Path, seeds: int = 3) -> list[pathlib.Path]:
    """`seeds` runs that collapse and as many that do not."""
    return [
        write_run(folder / f"{name}-{seed}", seed=seed, collapses=collapses)
        for name, collapses in (("vanilla", True), ("starpo_s", False))
        for seed in range(seeds)
    ]


def _record(i, game, collapses, rng, diagnostics) -> dict:
    time = i / NUM_ITERATIONS
    fall = 1 / (1 + np.exp((time - 0.35) * 18)) if collapses else 1.0
    later = 1 / (1 + np.exp((time - 0.5) * 18)) if collapses else 1.0

    def near(value, noise=0.03):
        return float(value * (1 + noise * rng.standard_normal()))

    success = min(1.0, near((0.2 + 0.45 * (1 - np.exp(-3 * time))) * later + 0.01))
    record = {"iteration": i, "time": 1e9 + 5.0 * i}
    if i % 5 == 0:
        held = min(1.0, near(success * 1.02))
        record |= {
            f"val-env/{game}/success": held,
            f"val-env/{game}/success_low": max(0, held - 0.06),
            f"val-env/{game}/success_high": min(1, held + 0.06),
            f"val-env/{game}/ceiling": 0.992,
            f"val-env/{game}/solved_of_solvable": held / 0.992,
            "timing_s/testing": near(2.0),
        }
    if i == 0:
        return record | {"perf/compile_s/testing": 30.0}
    record |= {
        f"train/{game}/success": success,
        f"train/{game}/episodic_return": 11 * success - 1,
        f"train/{game}/response_length": 29.5,
        f"train/{game}/reply_length": near(12 * (0.6 + 0.4 * fall)),
        f"train/{game}/format": near(0.98, 0.01),
        "rollout/in_group_reward_std": near(2.1 * fall + 0.3),
        "rollout/in_group_reward_stds": [0.0, 1.5, near(2.0)],
        "rollout/filter_kept_ratio": 1.0 if collapses else 0.25,
        "actor/entropy": near(0.6 * (0.3 + 0.7 * later)),
        "actor/grad_norm": near(0.4, 0.2) * (4 if collapses and i == 15 else 1),
        "actor/pg_clipfrac": near(0.02, 0.3),
        "actor/ppo_kl": near(0.002, 0.3),
        "actor/ref_kl": 0.01 * time if collapses else 0.0,
        "actor/kl_coeff": 0.001 if collapses else 0.0,
        "actor/num_tokens": near(3300),
        "actor/lr": None,
        "timing_s/rollout": near(1.4, 0.1),
        "timing_s/update": near(2.6, 0.1),
    }
    if i == 1:
        record |= {"timing_s/rollout": 25.0, "perf/compile_s/rollout": 20.0}
    return record | (_diagnostics(i, fall, later, near) if diagnostics else {})


def _diagnostics(i, fall, later, near) -> dict:
    metrics = {
        "rollout/distinct_3gram": near(0.4 * (0.3 + 0.7 * fall)),
        "rollout/top_reply_share": near(0.1 + 0.7 * (1 - fall)),
        "collapse/valid_thinking_rate": near(0.97, 0.01),
        "alarm/in_group_reward_std": float(fall < 0.5),
        "alarm/distinct_3gram": float(fall < 0.3),
        "alarm/entropy": float(later < 0.2),
        "alarm/grad_norm": float(fall < 1 and i == 15),
    }
    if i == 1 or i % 5 == 0:
        information, entropy = near(0.9 * fall + 0.03), near(0.8 * (0.4 + 0.6 * later))
        metrics |= {
            f"{FIRST_TURN}mi_estimate": information,
            f"{FIRST_TURN}conditional_entropy_est": entropy,
            f"{FIRST_TURN}mi_zscore": 3 * information,
            f"{FIRST_TURN}retrieval_accuracy": min(1, 0.06 + information),
            f"{FIRST_TURN}retrieval_chance_level": 0.0625,
            "collapse/regime": float((information < 0.45) + 2 * (entropy < 0.4)),
        }
        for bucket in range(1, 5):
            prefix = f"grad_norm/bucket_{bucket}/"
            metrics |= {
                f"{prefix}task": near(0.1 * bucket * (0.1 + fall), 0.1),
                f"{prefix}entropy": near(0.02, 0.1),
                f"{prefix}kl": near(0.005, 0.1),
                f"{prefix}snr": near(0.5 * bucket * fall, 0.1),
            }
        metrics |= {"grad_norm/all/task": near(0.3), "grad_norm/all/snr": near(1.0)}
    return metrics


def _episode(i, row, rng, success, tokens) -> dict:
    wins = bool(rng.random() < success)
    turns = []
    for k in range(2 if wins else 3):
        texts = ["P32", "X22O12", "</think>", "<answer>", "Left", " || ", "Up"]
        texts += ["</answer>", "<|im_end|>"]
        if row == 3:
            texts = ["", "√ ", HOSTILE, "<|im_end|>"]
        log_probs = np.round(-rng.exponential(0.7, len(texts)), 3).tolist()
        turn = {
            "turn": k + 1,
            "observation": _observation(k),
            "board": BOARDS[min(k, 1)],
            "boards_after": [BOARDS[min(k, 1)], BOARDS[1]],
            "reply": "".join(texts),
            "actions": [2, 0],
            "reward": 10.8 if wins and k == 1 else -0.2,
            "penalty": -0.1 if row == 3 else 0.0,
            "bonus": 0.0,
            "advantage": 1.25 if wins else -0.5,
            "actions_left": 10 - 2 * k,
            "listed": 2,
            "valid": 2,
            "effective": 1,
            "has_format": row != 3,
            "is_cut": False,
            "reply_tokens": len(texts),
            "log_prob": float(np.sum(log_probs)),
        }
        if tokens:
            turn |= {"token_texts": texts, "token_log_probs": log_probs}
        else:
            del turn["board"], turn["boards_after"], turn["advantage"]
        turns.append(turn)
    total = sum(turn["reward"] for turn in turns)
    record = {
        "row": row,
        "group": row // 2,
        "kept": row < 2,
        "success": wins,
        "terminated": wins,
        "truncated": not wins,
    }
    record |= {"return": total, "penalty": 0.0, "bonus": 0.0, "tokens": 150 + i}
    if not tokens:
        del record["group"], record["kept"]
    return record | {"sampled_tokens": 27, "turns": turns, "legend": LEGEND}


def _observation(k) -> str:
    board = "\n".join(BOARDS[min(k, 1)])
    return (
        "<|im_start|>system\nsokoban<|im_end|>\n<|im_start|>user\n"
        f"Turn {k + 1}\n{board}\nLeft 10<|im_end|>\n<|im_start|>assistant\n<think>"
    )
