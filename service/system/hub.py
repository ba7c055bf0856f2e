"""The hub that the environment names, by the variables of `huggingface_hub`.

HF_ENDPOINT, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE mean here what they mean to other tools, so
that all share one cache (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).
They are read without importing that library, which takes longer than a cached model does.
"""

from __future__ import annotations

import os
from pathlib import Path

from model.sources.hub.repository import Hub

_TRUE = {"1", "ON", "YES", "TRUE"}


def default_endpoint() -> str:
    """HF_ENDPOINT, or the public hub."""
    return _first("HF_ENDPOINT") or "https://huggingface.co"


def open_hub(endpoint: str) -> Hub:
    """A hub with the cache that the environment names, and whether it is to be asked at all."""
    offline = _first("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") or ""
    return Hub(endpoint.rstrip("/"), _cache(), offline.upper() in _TRUE)


def _cache() -> Path:
    home = _first("HF_HOME")
    if home is None:
        home = f"{_first('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    folder = _first("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(folder)).expanduser()


def _first(*names: str) -> str | None:
    """The first of these variables that is not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)
