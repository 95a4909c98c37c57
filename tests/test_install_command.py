"""The commands that install optional packages, as they are printed."""

import importlib.metadata
import re
import shlex
import sys
import types

import ragen_jax
from tests.commands import ROOT


def test_a_checkout_installs_itself():
    words = shlex.split(ragen_jax.install_command("search"))
    assert words == [sys.executable, *["-m", "pip", "install", "-e"], f"{ROOT}[search]"]


def test_a_wheel_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(ragen_jax, "ROOT", tmp_path)
    url = '{"url": "file:///a%20b/ragen_jax-1-py3-none-any.whl"}'
    found = types.SimpleNamespace(read_text=lambda name: url)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    (*_, requirement) = shlex.split(ragen_jax.install_command("search"))
    assert requirement == (
        "ragen_jax[search] @ file:///a%20b/ragen_jax-1-py3-none-any.whl"
    )


def test_a_commit_is_named_and_no_source_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(ragen_jax, "ROOT", tmp_path)
    url = '{"url": "https://a/b", "vcs_info": {"vcs": "git", "commit_id": "c0"}}'
    found = types.SimpleNamespace(read_text=lambda name: url)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    assert ragen_jax.install_command("api").endswith(
        '"ragen_jax[api] @ git+https://a/b@c0"'
    )

    def missing(name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert ragen_jax.install_command("api").endswith('"ragen_jax[api]"')


def test_every_extra_that_is_named_exists():
    known = set(
        re.findall(r'^        "([\w-]+)": ', (ROOT / "setup.py").read_text(), re.M)
    )
    named = set()
    for file in (ROOT / "ragen_jax").rglob("*.py"):
        named |= set(
            re.findall(r"install_command\([\"']([\w-]+)[\"']\)", file.read_text())
        )
    assert len(named) > 5
    assert named <= known
