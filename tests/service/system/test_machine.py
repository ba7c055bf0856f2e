"""Properties of a machine, from files that stand in for the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.system import machine

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
