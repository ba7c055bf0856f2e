"""Hub of models, and the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.system import machine
from service.system.hub import default_endpoint, open_hub
from testing.process import run_python

VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_ENDPOINT"),
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
)
CASES: list[dict[str, str]] = [
    {},
    {"HF_HOME": "/a/home"},
    {"HF_HOME": "~/home", "XDG_CACHE_HOME": "/c"},
    {"HF_HOME": "$HOME/home"},
    {"XDG_CACHE_HOME": "/c"},
    {"HUGGINGFACE_HUB_CACHE": "/d", "HF_HOME": "/a/home"},
    {"HF_HUB_CACHE": "/e", "HUGGINGFACE_HUB_CACHE": "/d", "HF_HOME": "/a/home"},
    {"HF_HUB_CACHE": "~/e"},
    {"HF_HUB_OFFLINE": "1"},
    {"HF_HUB_OFFLINE": "true"},
    {"HF_HUB_OFFLINE": "0"},
    {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "yes"},
    {"HF_HUB_OFFLINE": "no", "TRANSFORMERS_OFFLINE": "on"},
    {"HF_ENDPOINT": "https://mirror.example/"},
]
THEIRS = """
import importlib, json, os
from huggingface_hub import constants
for case in {cases!r}:
    for name in {variables!r}:
        os.environ.pop(name, None)
    os.environ.update(case)
    importlib.reload(constants)
    print(constants.ENDPOINT, constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE)
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of somebody")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_it_is_the_one_that_huggingface_hub_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    script = THEIRS.format(cases=CASES, variables=VARIABLES)
    said = run_python("-c", script).stdout
    for case, theirs in zip(CASES, said.splitlines(), strict=True):
        with monkeypatch.context() as environment:
            for name, value in case.items():
                environment.setenv(name, value)
            hub = open_hub(default_endpoint())
        assert f"{hub.endpoint} {hub.cache} {hub.offline}" == theirs, case


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    hub = open_hub(default_endpoint())
    assert hub.endpoint == "https://huggingface.co"
    assert hub.cache == Path("/home/of somebody/.cache/huggingface/hub")
    assert not hub.offline


FILES = {
    "meminfo": "MemTotal: 16 kB\nMemAvailable:    8 kB\n",
    "memory.max": "4096\n",
    "memory.current": "3000\n",
    "memory.stat": "anon 2000\ninactive_file 500\nactive_file 9\n",
    "memory/memory.limit_in_bytes": "2048\n",
    "memory/memory.usage_in_bytes": "1024\n",
    "memory/memory.stat": "total_inactive_file 24\n",
}


def test_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GPU_DEVICES", (tmp_path / "a", tmp_path / "b"))
    assert not machine.may_have_gpu()
    (tmp_path / "b").touch()
    assert machine.may_have_gpu()


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ((), None),
        (("meminfo",), 8 * 1024),
        (("meminfo", "memory.max", "memory.current", "memory.stat"), 4096 - 3000 + 500),
        (tuple(name for name in FILES if name != "memory.max"), 1048),
    ],
)
def test_memory_that_is_available(
    there: tuple[str, ...], found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the system's, or the rest of a control group's limit, whose inactive cache is free."""
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.setattr(machine, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CONTROL_GROUP", tmp_path)
    assert machine.available_memory() == found
    if "memory.max" in there:
        (tmp_path / "memory.max").write_text("max\n")
        assert machine.available_memory() == 8 * 1024
