"""Small JSON files of a checkpoint, with errors that name the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model.errors import ConfigError


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ConfigError if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file does not exist."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return content


@contextlib.contextmanager
def naming(source: object) -> Iterator[None]:
    """Turn a validation error into a `ConfigError` that names the source and all fields."""
    try:
        yield
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        lines = (
            ": ".join(filter(None, (".".join(map(str, p["loc"])), p["msg"]))) for p in problems
        )
        raise ConfigError(f"{source}: {'; '.join(lines)}") from None
