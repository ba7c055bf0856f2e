"""Hub settings from the environment variables of `huggingface_hub`.

HF_ENDPOINT, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE have the same meaning as in other tools, so
that all share a cache (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).
They are read without importing `huggingface_hub`, which takes longer than opening a cached model.
"""

from __future__ import annotations

import os
from pathlib import Path

from model.sources.home import expanded
from model.sources.hub.repository import Hub

_TRUE = {"1", "ON", "YES", "TRUE"}


def default_endpoint() -> str:
    """Return HF_ENDPOINT, or the URL of the public hub."""
    return _first("HF_ENDPOINT") or "https://huggingface.co"


def open_hub(endpoint: str, *, pickles: bool = True) -> Hub:
    """Return a hub with the environment's cache and offline mode.

    Pickled weights may be fetched where there are no safetensors.
    """
    offline = _first("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") or ""
    return Hub(endpoint.rstrip("/"), _cache(), offline.upper() in _TRUE, pickles)


def _cache() -> Path:
    home = _first("HF_HOME")
    if home is None:
        home = f"{_first('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    folder = _first("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return expanded(os.path.expandvars(folder))


def _first(*names: str) -> str | None:
    """Return the value of the first of these variables that is not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)
