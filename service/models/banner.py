"""Lines that a service prints as it starts."""

from __future__ import annotations

from collections.abc import Iterator

from service.models.served import ServedModel
from service.models.table import Models
from service.settings import Settings
from service.system.distribution import version


def banner(settings: Settings, models: Models) -> Iterator[str]:
    """Yield lines with the version, each model and its engine, and whether requests need a key."""
    yield f"Headscope {version()}"
    for model in models:
        yield from map(_served, model.towers)
    keys = settings.api_keys is not None or settings.keys_file is not None
    yield "every request needs a key" if keys else "no request needs a key"


def _served(model: ServedModel) -> str:
    """Return a line with the engine of a model or tower, and what it reads."""
    engine, manifest = model.inference.engines.default.engine, model.artifact.manifest
    reads = f"at most {model.inference.limits.max_tokens} tokens a text"
    if manifest.images:
        height, width = manifest.images.size
        reads = f"pictures at {width} × {height} pixels, {model.inference.limits.max_tokens} tokens"
    return f"{model.name}: {manifest.precision} by {engine.name} ({engine.provider}), {reads}"


def address_line(settings: Settings, host: str, port: int) -> str:
    """Return a line that says what is served at an address."""
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if port == settings.metrics_port:
        return f"metrics and health, without a key: {url}/metrics"
    return f"serving {url}, the dashboard: {url}/"
