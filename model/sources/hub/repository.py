"""A hub, a repository on it at a revision, and Hugging Face's cache of downloads.

Format of the cache: `models--organisation--model/refs/REVISION` holds a commit, `snapshots/COMMIT/`
the files as links to `blobs/`, and an empty `.no_exist/COMMIT/NAME` marks a file that the commit
lacks (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from model.errors import SourceError
from model.sources.files import deciding, lacking
from model.sources.home import expanded

ORGANISATION = "sentence-transformers"
_ORIGINAL = """
albert-base-v1 albert-base-v2 albert-large-v1 albert-large-v2 albert-xlarge-v1 albert-xlarge-v2
albert-xxlarge-v1 albert-xxlarge-v2 bert-base-cased bert-base-cased-finetuned-mrpc
bert-base-chinese bert-base-german-cased bert-base-german-dbmdz-cased
bert-base-german-dbmdz-uncased bert-base-multilingual-cased bert-base-multilingual-uncased
bert-base-uncased bert-large-cased bert-large-cased-whole-word-masking
bert-large-cased-whole-word-masking-finetuned-squad bert-large-uncased
bert-large-uncased-whole-word-masking bert-large-uncased-whole-word-masking-finetuned-squad
camembert-base ctrl distilbert-base-cased distilbert-base-cased-distilled-squad
distilbert-base-german-cased distilbert-base-multilingual-cased distilbert-base-uncased
distilbert-base-uncased-distilled-squad distilbert-base-uncased-finetuned-sst-2-english
distilgpt2 distilroberta-base gpt2 gpt2-large gpt2-medium gpt2-xl openai-gpt roberta-base
roberta-base-openai-detector roberta-large roberta-large-mnli roberta-large-openai-detector
t5-11b t5-3b t5-base t5-large t5-small transfo-xl-wt103 xlm-clm-ende-1024 xlm-clm-enfr-1024
xlm-mlm-100-1280 xlm-mlm-17-1280 xlm-mlm-en-2048 xlm-mlm-ende-1024 xlm-mlm-enfr-1024
xlm-mlm-enro-1024 xlm-mlm-tlm-xnli15-1024 xlm-mlm-xnli15-1024 xlm-roberta-base
xlm-roberta-large xlm-roberta-large-finetuned-conll02-dutch
xlm-roberta-large-finetuned-conll02-spanish xlm-roberta-large-finetuned-conll03-english
xlm-roberta-large-finetuned-conll03-german xlnet-base-cased xlnet-large-cased
"""
ORIGINAL = frozenset(_ORIGINAL.split())
"""Names of transformers' first models, which exist on the hub without an organisation."""


def full_name(name: str) -> str:
    """Return a name completed with its organisation, as in sentence-transformers.

    A local folder or file stays as it is.
    """
    own = name.partition("@")[0]
    if "/" in own or own in ORIGINAL or not is_name(own) or expanded(name).exists():
        return name
    return f"{ORGANISATION}/{name}"


DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Snapshot:
    """Cached files of a repository at a commit."""

    folder: Path
    lacks: list[str]
    """Files that are missing for a complete checkpoint."""
    unknown: list[str]
    """Files for which the cache does not show whether the repository has them: tools that download
    only the encoder do not look for `modules.json` or bge-m3's linear maps, and some not for
    `model.safetensors`."""


def find_cached(cache: Path, repository: Repository, *, pickles: bool = True) -> Snapshot | None:
    """Return the cached snapshot of a repository; None if there is none."""
    home = cache / repository.folder
    commit = _commit(home, repository.revision or DEFAULT_REVISION)
    if commit is None or not (home / "snapshots" / commit).is_dir():
        return None
    folder = home / "snapshots" / commit
    shown = (folder, home / ".no_exist" / commit)
    decide = deciding(folder, pickles=pickles)
    unknown = [name for name in decide if not any((at / name).is_file() for at in shown)]
    return Snapshot(folder, lacking(folder, pickles=pickles), unknown)


def cached_name(folder: Path) -> str | None:
    """Return the repository of a snapshot folder; None if the folder is not a snapshot."""
    home = folder.parent.parent.name
    if folder.parent.name == "snapshots" and home.startswith("models--"):
        return home.removeprefix("models--").replace("--", "/")
    return None


def _commit(home: Path, revision: str) -> str | None:
    try:
        text = (home / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = revision
    return text if _COMMIT.fullmatch(text) else None


_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
_MAX_NAME = 96
"""Maximum length of a repository's own name, as on the hub."""
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/@-]*")


@dataclass(frozen=True)
class Hub:
    """Hugging Face hub, and the cache of its files on this machine."""

    endpoint: str
    """Base URL of the hub."""
    cache: Path
    """Folder of `models--organisation--model` folders, shared with other tools."""
    offline: bool = False
    """Whether only the cache may be used."""
    pickles: bool = True
    """Whether pickled weights may be fetched if a checkpoint lacks safetensors."""


@dataclass(frozen=True)
class Repository:
    """Model on a hub at a revision."""

    name: str
    """Name `organisation/model`, or `model` alone."""
    revision: str | None = None
    """Branch, tag or commit; the hub's `main` when None."""

    @classmethod
    def parse(cls, text: str, revision: str | None = None) -> Repository:
        """Parse `name` or `name@revision`."""
        name, _, own = text.partition("@")
        if not is_name(name):
            raise SourceError(f"{text} is neither a folder nor a model's name")
        if "@" in text and revision not in (None, own):
            raise SourceError(f"{text} names a revision, and --revision {revision} another")
        chosen = own if "@" in text else revision
        if chosen is not None and (not _REVISION.fullmatch(chosen) or ".." in chosen):
            raise SourceError(
                f"{chosen!r} is not a revision of {name}: give a branch, tag or commit"
            )
        return cls(name, chosen)

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def folder(self) -> str:
        """Name of the repository's folder in the cache."""
        return "--".join(["models", *self.name.split("/")])


def is_name(text: str) -> bool:
    """Return whether a hub accepts this as a repository's name."""
    own = text.rpartition("/")[2]
    return (
        bool(_NAME.fullmatch(text))
        and len(own) <= _MAX_NAME
        and "--" not in text
        and ".." not in text
        and not text.endswith(".git")
    )
