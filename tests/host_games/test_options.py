"""Options of the built-in games: every one is checked, and says what is allowed.

What the checks themselves allow: `common/test_options.py`.
"""

import re

import pytest

from ragen_jax.host_games.alfworld.game import Alfworld
from ragen_jax.host_games.coding.game import Coding
from ragen_jax.host_games.lean.game import LeanGame
from ragen_jax.host_games.lean.kimina import KiminaChecker
from ragen_jax.host_games.mathqa.game import MathQA
from ragen_jax.host_games.search.game import SearchQA
from ragen_jax.host_games.webshop.game import WebShop

GONE = "cannot be read"
TABLE = [
    (Alfworld, {"split": "test"}, "split is 'test'"),
    (Alfworld, {"max_steps": 0}, "max_steps is 0"),
    (Alfworld, {"show_actions": 1}, "show_actions is 1"),
    (Alfworld, {"tasks": ()}, "tasks is ()"),
    (Alfworld, {"tasks": 3}, "tasks is 3"),
    (Alfworld, {"tasks": [[]]}, "tasks is"),
    (Alfworld, {"tasks": "fly"}, "tasks is 'fly'; use some of place, clean"),
    (Alfworld, {"tasks": ["heat", "fly"]}, "use some of"),
    (Alfworld, {"tasks": "heat", "data": "x"}, "leave out one of the two"),
    (Alfworld, {"data": "/nowhere"}, "data=/nowhere is not a folder"),
    (Coding, {"split": "test"}, "split is 'test'"),
    (Coding, {"isolation": "chroot"}, "use None or namespaces or limits"),
    (Coding, {"isolation": "limits", "sandbox_url": "http://x"}, "beside sandbox_url"),
    (Coding, {"sandbox_url": "x:80"}, "sandbox_url is 'x:80'; use one like http://"),
    (Coding, {"test_seconds": 0}, "test_seconds is 0"),
    (Coding, {"test_seconds": 601}, "above 0 and of at most 600"),
    (Coding, {"total_seconds": -1}, "total_seconds is -1"),
    (Coding, {"memory_mb": 1}, "use a whole number from 64 to 65536"),
    (Coding, {"max_tests": 0}, "max_tests is 0"),
    (Coding, {"path": "nowhere.json"}, GONE),
    (LeanGame, {"split": "test"}, "split is 'test'"),
    (LeanGame, {"max_steps": 0}, "max_steps is 0"),
    (LeanGame, {"message_chars": 1.5}, "message_chars is 1.5"),
    (LeanGame, {"max_steps": 5}, "max_tactics is 6 and max_steps 5"),
    (LeanGame, {"ascii": "yes"}, "ascii is 'yes'; use None or True or False"),
    (LeanGame, {"max_depth": 5}, "max_depth is 5; use a whole number from 1 to 4"),
    (LeanGame, {"num_atoms": 5}, "num_atoms is 5; use a whole number from 1 to 4"),
    (LeanGame, {"max_tactics": 11}, "max_tactics is 11"),
    (LeanGame, {"min_tactics": 7}, "min_tactics is 7; use a whole number from 1 to 6"),
    (LeanGame, {"url": "http://x"}, "url is 'http://x' without data"),
    (LeanGame, {"timeout_seconds": 3}, "timeout_seconds is 3 without data"),
    (LeanGame, {"api": "check"}, "api is 'check' without data"),
    (LeanGame, {"key_variable": "K"}, "key_variable is 'K' without data"),
    (LeanGame, {"data": "x", "ascii": True}, "ascii is True beside data"),
    (LeanGame, {"data": "x", "num_atoms": 2}, "num_atoms is 2 beside data"),
    (LeanGame, {"data": "x.jsonl"}, "data is given and url is not; start a Kimina"),
    (LeanGame, {"data": "none.jsonl", "url": "http://h"}, GONE),
    (LeanGame, {"done_reward": "much"}, "done_reward is 'much'"),
    (LeanGame, {"step_reward": float("nan")}, "step_reward is nan"),
    (KiminaChecker, {"url": "localhost:8000"}, "url is 'localhost:8000'; use one like"),
    (KiminaChecker, {"url": "http://h", "api": "repl"}, "use check or verify"),
    (KiminaChecker, {"url": "http://h", "timeout_seconds": 1.5}, "timeout_seconds is"),
    (KiminaChecker, {"url": "http://h", "tries": 0}, "tries is 0"),
    (KiminaChecker, {"url": "http://h", "wait_seconds": -1}, "wait_seconds is -1"),
    (MathQA, {"split": "test"}, "split is 'test'"),
    (MathQA, {"judge": "llm"}, "use string or math"),
    (MathQA, {"attempts": 0}, "attempts is 0"),
    (MathQA, {"retry_factor": 2.0}, "retry_factor is 2.0"),
    (MathQA, {"num_steps": 4}, "use a whole number from 1 to 3"),
    (MathQA, {"max_number": 5}, "use a whole number from 10 to 10000"),
    (MathQA, {"judge_seconds": 0.0}, "judge_seconds is 0.0"),
    (MathQA, {"path": "nowhere.json"}, GONE),
    (SearchQA, {"split": "test"}, "split is 'test'"),
    (SearchQA, {"max_searches": 0}, "max_searches is 0"),
    (SearchQA, {"top_k": 0}, "top_k is 0"),
    (SearchQA, {"passage_chars": 39}, "use a whole number of at least 40"),
    (SearchQA, {"loose": "no"}, "loose is 'no'"),
    (SearchQA, {"num_hops": 3}, "num_hops is 3; use 1 or 2"),
    (SearchQA, {"num_worlds": 0}, "num_worlds is 0"),
    (SearchQA, {"data": "x", "num_worlds": 2}, "num_worlds is 2 beside data='x'"),
    (SearchQA, {"data": "x", "num_hops": 2}, "num_hops is 2 beside data='x'"),
    (SearchQA, {"data": "x.json", "max_questions": 0}, "max_questions is 0"),
    (SearchQA, {"max_questions": 5}, "max_questions is 5 without data"),
    (SearchQA, {"dialect": "auto"}, "dialect is 'auto' without retriever"),
    (SearchQA, {"timeout_seconds": 3.0}, "timeout_seconds is 3.0 without retriever"),
    (SearchQA, {"data": "/absent.json"}, GONE),
    (SearchQA, {"retriever": "localhost:8000"}, "retriever is 'localhost:8000'; use"),
    (SearchQA, {"retriever": "http://h", "dialect": "x"}, "dialect is 'x'; use auto"),
    (SearchQA, {"retriever": "http://h", "timeout_seconds": 0}, "timeout_seconds is 0"),
    (WebShop, {"split": "test"}, "split is 'test'"),
    (WebShop, {"rules": "strict"}, "rules is 'strict'; use light or faithful"),
    (WebShop, {"rules": []}, "use light or faithful"),
    (WebShop, {"pay": None}, "pay is None; use raw or success"),
    (WebShop, {"pages": "html"}, "pages is 'html'; use short or original"),
    (WebShop, {"page_size": 0}, "page_size is 0; use a whole number from 1 to 50"),
    (WebShop, {"page_size": 51}, "page_size is 51"),
    (WebShop, {"attributes": "a"}, "attributes is 'a' beside generated products"),
    (WebShop, {"instructions": "a"}, "instructions is 'a' beside generated products"),
    (WebShop, {"data": "a.json"}, "data is 'a.json' without attributes"),
    (WebShop, {"data": "gone.json", "attributes": "a.json"}, GONE),
]


@pytest.mark.parametrize(("make", "options", "words"), TABLE)
def test_options_are_refused(make, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make(**options)
