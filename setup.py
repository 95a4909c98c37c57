"""Package metadata; requirements.txt is the single list of run-time needs."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
# PNG files of `launch.report`; its page needs nothing.
PLOTS = ["matplotlib>=3.9,<4"]
# Models behind an API in `launch.evaluate`.
API = ["openai>=2,<4"]
# The index of the search game.
SEARCH = ["bm25s>=0.3.16,<0.4"]
# The judge of mathematical answers.
MATH = ["math-verify>=0.9,<0.10"]
# Fuzzy matching and nouns of WebShop's own rules.
WEBSHOP = [*SEARCH, "rapidfuzz>=3.6,<4", "spacy>=3.7,<4"]
# Environments of Gymnasium, and ours as theirs.
GYMNASIUM = ["gymnasium>=1.0,<2"]
# Data sets of questions; the adapter names some of this version's, which it refuses.
REASONING_GYM = ["reasoning-gym==0.1.25"]
# Games of TextArena; the table of those that can be played is of this version.
TEXTARENA = ["textarena>=0.7.4,<0.8"]
# OpenEnv's protocol, both ways.
SERVE = ["websockets>=15,<18"]
# Where metrics go besides the run folder (`logging.sinks`).
WANDB = ["wandb>=0.20,<1"]
MLFLOW = ["mlflow>=2.19,<4"]
# Data sets of host games.
PARQUET = ["pyarrow>=17,<28"]


def requirements() -> list[str]:
    lines = (HERE / "requirements.txt").read_text().splitlines()
    stripped = (line.split("#")[0].strip() for line in lines)
    return [line for line in stripped if line]


def version() -> str:
    text = (HERE / "ragen_jax" / "__init__.py").read_text()
    return re.search(r'__version__ = "(.+)"', text).group(1)


setup(
    name="ragen_jax",
    version=version(),
    description="Multi-turn reinforcement learning of LLM agents, all on the device",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(
        include=["ragen_jax*", "envs*", "configs", "launch", "studies"]
    ),
    package_data={
        "ragen_jax": [
            "pocket/*",
            "pocket_worlds/*",
            "pocket_host/*",
            "pocket_vision/*",
        ],
        "ragen_jax.report": ["static/*"],
        "envs": ["cells.json"],
    },
    entry_points={"console_scripts": ["ragen-jax = launch.main:main"]},
    install_requires=requirements(),
    extras_require={
        "cuda": ["jax[cuda12]>=0.10,<0.12"],
        "tpu": ["jax[tpu]>=0.10,<0.12"],
        "report": PLOTS,
        "api": API,
        "search": SEARCH,
        "parquet": PARQUET,
        "math": MATH,
        "webshop": WEBSHOP,
        "serve": SERVE,
        "gymnasium": GYMNASIUM,
        "reasoning-gym": REASONING_GYM,
        "textarena": TEXTARENA,
        "wandb": WANDB,
        "mlflow": MLFLOW,
        "dev": [
            "pytest>=8,<10",
            "pytest-timeout>=2.3,<3",
            "pytest-xdist>=3.6,<4",
            "hypothesis>=6.100,<7",
            "beartype>=0.20,<0.24",
            "rapidfuzz>=3.6,<4",
            *GYMNASIUM,
            *SERVE,
            *PLOTS,
            *API,
            *SEARCH,
            *PARQUET,
            *MATH,
            "selenium>=4.20,<5",
            "ruff>=0.9,<1",
        ],
    },
)
