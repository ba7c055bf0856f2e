"""Errors of libraries that read or write an artifact's file are one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import SafetensorError

from model.artifact.access import writing
from model.errors import ArtifactError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (RuntimeError("of a library,\n  at length"), "of a library, at length"),
        (SafetensorError("I/O error"), "I/O error"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path: Path, error: Exception, reason: str) -> None:
    path = tmp_path / "file"
    with pytest.raises(ArtifactError) as refused, writing(path):
        raise error
    assert str(refused.value) == f"{path} cannot be written: {reason}"
