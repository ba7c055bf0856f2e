"""Damaged artifacts are refused in a line, and the port never opens."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from model.artifact.manifest import (
    ENCODER_DATA,
    FILES,
    GOLDEN,
    GRAPHS,
    HEADS,
    MANIFEST,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    load_artifact,
    record_file,
)
from model.errors import ArtifactError, ModelError
from service.errors import ServiceError
from testing.process import free_port
from tests.model.refusals import refused
from tests.service.harness import serving

HANG_SECONDS = 120


@pytest.fixture
def copy(tiny_artifact: Artifact, tmp_path: Path) -> Path:
    """Return an artifact to damage. Its files are links: replace them, do not write into them."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in (*FILES, MANIFEST):
        os.link(tiny_artifact.folder / name, folder / name)
    return folder


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    edit(content)
    replace(folder / MANIFEST, json.dumps(content).encode())


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file, and update its digest in the manifest."""
    replace(folder / name, content)
    record = record_file(folder / name).model_dump()
    edit_manifest(folder, lambda manifest: manifest["files"].update({name: record}))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    replace(path, bytes(content))


def refusal(folder: Path) -> str:
    return refused(ArtifactError, folder, load_artifact, folder)


def point_to(folder: Path, location: str, graph: str = GRAPHS["encoder"]) -> None:
    """Move a graph's tensors to another place, and update the digests in the manifest."""
    model = onnx.load(folder / graph, load_external_data=False)
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=location)
    forge(folder, graph, model.SerializeToString())


@pytest.mark.parametrize(
    "location",
    [
        "../outside.data",
        "/etc/hostname",
        HEADS,
        f"./{ENCODER_DATA}",
        f"sub/../{ENCODER_DATA}",
        "other.data",
        f"{ENCODER_DATA}.old",
        "",
        "x" * 200,
    ],
)
def test_tensors_in_another_file(copy: Path, location: str) -> None:
    point_to(copy, location)
    assert f"{GRAPHS['encoder']} has tensors in another file" in refusal(copy)


@pytest.mark.parametrize("graph", sorted({*GRAPHS.values()} & {*FILES} - {GRAPHS["encoder"]}))
def test_tensors_of_any_graph(copy: Path, graph: str) -> None:
    model = onnx.load(copy / graph, load_external_data=False)
    if not model.graph.initializer:
        model.graph.initializer.add(name="more", data_type=1, dims=[1])
        forge(copy, graph, model.SerializeToString())
    point_to(copy, "../outside.data", graph)
    assert f"{graph} has tensors in another file" in refusal(copy)


def test_an_entry_that_is_encoded_in_another_way(copy: Path) -> None:
    """Protobuf does not say which of two fields comes first."""
    name = WEIGHTS.encode()
    key, value = b"\x0a\x08location", bytes((0x12, len(name))) + name
    content = (copy / GRAPHS["encoder"]).read_bytes()
    swapped = content.replace(key + value, value + key, 1)
    assert swapped != content
    found = onnx.load_from_string(swapped)
    assert found.graph == onnx.load_from_string(content).graph
    forge(copy, GRAPHS["encoder"], swapped)
    assert "has tensors in another file" in refusal(copy)


def fails_to_serve(folder: Path, code: int) -> str:
    """Run `serve`, check that its port never opens, and return its last line."""
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--artifact", str(folder)]
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                process.kill()
                pytest.fail("the port was open")
            if time.monotonic() - started > HANG_SECONDS:
                process.kill()
                pytest.fail("it took too long")
            time.sleep(0.02)
        out, errors = process.communicate()
    assert process.returncode == code
    assert out == ""
    (line,) = errors.splitlines()
    assert line.startswith("headscope serve: ")
    return line


def wrong_numbers(folder: Path) -> None:
    """Return the same weights in another order."""
    content = (folder / WEIGHTS).read_bytes()
    start = len(content) % 4 + 4000
    half = (start + len(content)) // 8 * 4
    forge(folder, WEIGHTS, content[:start] + content[half:] + content[start:half])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (GRAPHS["encoder"], "cannot load encoder.onnx"),
        *((name, name) for name in (HEADS, GOLDEN, TOKENIZER)),
    ],
)
async def test_a_file_that_is_none(copy: Path, name: str, says: str) -> None:
    """Only loading the file reveals it, before the application has started."""
    forge(copy, name, b"none")
    with pytest.raises((ModelError, ServiceError), match=says):
        async with serving(load_artifact(copy)):
            pytest.fail("it started")


PROCESSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "one bit": (lambda f: flip_a_bit(f / WEIGHTS), f"{WEIGHTS} is damaged"),
    "a graph that is none": (
        lambda f: forge(f, GRAPHS["encoder"], b"none"),
        "cannot load encoder.onnx",
    ),
    "wrong numbers": (wrong_numbers, "disagrees with PyTorch"),
}
"""Faults that opening, loading and verifying an artifact find."""


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "says"), PROCESSES.values(), ids=PROCESSES)
def test_it_is_never_served(copy: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(copy)
    assert says in fails_to_serve(copy, 4 if damage is wrong_numbers else 1)
