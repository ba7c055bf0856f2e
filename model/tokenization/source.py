"""Inputs of a tokenizer, and classes of tokenizers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, models
from tokenizers.processors import PostProcessor

from model.errors import CheckpointError
from model.tokenization.declared import Declared, Token, special_tokens
from model.tokenization.files import Settings, TokenizerFiles

Kind = Literal["WordPiece", "BPE", "Unigram", "SentencePiece"]
"""Kind of vocabulary; SentencePiece has files of its own, never a tokenizer.json."""
Side = Literal["source", "target"]
"""Side of an encoder–decoder: the texts it reads, or the texts it writes."""
Pieces = list[tuple[str, float]]


@dataclass(frozen=True)
class Source:
    """Parts of a checkpoint's files that its tokenizer is built from."""

    files: TokenizerFiles
    flags: Settings
    named: dict[str, Token | None]
    """Usual special tokens by name; the class's own if the files name none."""
    special: dict[str, Token]
    """All special tokens by name."""
    extra: list[Token]
    """Special tokens without a name."""
    added: dict[int, AddedToken] = field(default_factory=dict)
    """Tokens by the ids under which they were saved."""
    side: Side = "source"

    def name(self, token: str) -> str:
        """Return a named special token as text."""
        return str(self.named[token])

    def words(self) -> dict[str, int]:
        """Return the ids of the word pieces."""
        if self.files.stored is None:
            return models.WordPiece.read_file(str(self.files.folder / "vocab.txt"))
        return self._ids()

    def byte_pairs(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Return the ids of the tokens, and the merges in order."""
        if self.files.stored is None:
            paths = (str(self.files.folder / name) for name in ("vocab.json", "merges.txt"))
            return models.BPE.read_file(*paths)
        merges = self._model.get("merges") or []
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        return self._ids(), [(left, right) for left, right in pairs]

    @property
    def pieces(self) -> Pieces:
        """Pieces of a Unigram vocabulary and their log probabilities, by id."""
        return [tuple(piece) for piece in self._model["vocab"]]

    @property
    def charsmap(self) -> bytes | None:
        """Normalisation table of SentencePiece, from tokenizer.json; None without one."""
        normalizer = self._stored.get("normalizer") or {}
        for step in normalizer.get("normalizers", [normalizer]):
            if step.get("type") == "Precompiled" and "precompiled_charsmap" in step:
                return base64.b64decode(step["precompiled_charsmap"])
        return None

    def post_processor(self) -> PostProcessor | None:
        """Return the post-processor of tokenizer.json; None without one."""
        if self.files.stored is None:
            return None
        if self._model.get("type") in (None, "Unigram"):  # these need their vocabulary
            return Tokenizer.from_file(str(self.files.folder / "tokenizer.json")).post_processor
        empty: Settings = {"vocab": {}} | ({"merges": []} if "merges" in self._model else {})
        content = self._stored | {"model": self._model | empty, "added_tokens": []}
        return Tokenizer.from_str(json.dumps(content)).post_processor

    def _ids(self) -> dict[str, int]:
        vocabulary = self._model["vocab"]
        if isinstance(vocabulary, dict):
            return vocabulary
        tokens = [token[0] if isinstance(token, list) else token for token in vocabulary]
        return {token: index for index, token in enumerate(tokens)}

    @property
    def _stored(self) -> Settings:
        return self.files.stored or {}

    @property
    def _model(self) -> Settings:
        model: Settings = self._stored["model"]
        return model


def _no_tokens(_: Settings) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class TokenizerClass:
    """Class of tokenizers: how transformers builds them."""

    kind: Kind
    """Kind of its vocabulary."""
    build: Callable[[Source], Tokenizer]
    """Function that builds model, normalizer, pre-tokenizer and decoder, before tokens are
    added."""
    named: Mapping[str, str]
    """Default special tokens by name."""
    complete: Callable[[Tokenizer, Source], None] | None = None
    """Function that changes the tokenizer after all tokens are added; None without one."""
    as_added: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """Flags of special tokens that the files name as bare strings."""
    usual_extra: Callable[[Settings], Sequence[str]] = _no_tokens
    """Function from the files' flags to the default special tokens without a name."""
    vocabulary_files: tuple[str, ...] = ()
    """Names of files that replace tokenizer.json."""
    segments: bool = False
    """Whether it returns segments to the model by default."""
    sided: bool = False
    """Whether its targets may be tokenized differently from its sources."""

    def source(
        self, name: str, files: TokenizerFiles, declared: Declared, side: Side = "source"
    ) -> Source:
        """Return the inputs of a tokenizer of this class, called `name`.

        Raises:
            CheckpointError: files are missing, or their vocabulary is not of the class's kind.

        """
        if self.kind == "SentencePiece":
            files.require_all(self.vocabulary_files)
        else:
            files.require(name, self.vocabulary_files)
        if files.stored is not None and self.kind != "SentencePiece":
            self._check_vocabulary(name, files, files.stored["model"])
        named = {
            token: AddedToken(value, **self.as_added[token])
            if token in self.as_added and isinstance(value, str)
            else value
            for token, value in (dict(self.named) | declared.named).items()
        }
        extra: list[Token] = list(
            self.usual_extra(declared.flags) if declared.extra is None else declared.extra
        )
        special = special_tokens(named, declared)
        return Source(files, declared.flags, named, special, extra, declared.added, side)

    def _check_vocabulary(self, name: str, files: TokenizerFiles, model: Any) -> None:
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if not isinstance(vocabulary, list if self.kind == "Unigram" else dict | list):
            raise CheckpointError(
                f"{files.folder} holds no readable tokenizer: {name} has a {self.kind} "
                "vocabulary, tokenizer.json holds another; where that file is right, set "
                "tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
            )
