"""Results of calls.

Notation: S tokens of one text, H features of a token's vector, D of a text's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from headscope.display import (
    LONG,
    HeatMap,
    Shown,
    box,
    frame,
    lines,
    shape_of,
    short,
    start_of,
    table,
    vectors_frame,
)
from headscope.errors import HeadscopeError
from headscope.words import Offset, Word, places_of, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_ROWS = 10
"""Maximum number of texts of a list that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class TokenizedText(Shown):
    """Text or pair of texts, as the encoder reads it."""

    model: str
    backend: str
    texts: tuple[str, ...]
    """Texts of the caller: one, or two of a pair; the name of a picture."""
    tokens: list[str]
    token_ids: list[int]
    segment_ids: list[int]
    offsets: list[Offset]
    """Code points in the token's own text; `(0, 0)` for special tokens and patches."""
    truncated: bool
    grid: tuple[int, int] | None = field(default=None, kw_only=True)
    """Rows and columns of a picture's patches, which follow its special tokens; None for a text."""
    size: tuple[int, int] | None = field(default=None, kw_only=True)
    """Width and height of a picture, as it is displayed."""
    crop: tuple[float, float, float, float] | None = field(default=None, kw_only=True)
    """Left, top, right and bottom of the part of a picture that the model sees."""
    tower: Literal["text", "vision"] | None = field(default=None, kw_only=True)
    """Tower of the input, of a model with two towers."""

    @property
    def sentence_b_start(self) -> int | None:
        """Index of the first token of a pair's second part; None for a single text."""
        places = places_of(self.tokens, self.offsets, self.segment_ids, self.texts)
        return places.index(1) if 1 in places else None

    @cached_property
    def words(self) -> list[Word]:
        """Words with their tokens, including special tokens; patches of a picture."""
        if self.grid is None:
            return words_of(self.tokens, self.offsets, self.segment_ids, self.texts)
        special = len(self.tokens) - self.grid[0] * self.grid[1]
        return [Word(token, [i], 0, i < special) for i, token in enumerate(self.tokens)]

    def _facts(self) -> list[str]:
        cut = ["truncated"] if self.truncated else []
        return [*map(short, self.texts), f"{len(self.tokens)} tokens", *cut]

    def _repr_html_(self) -> str:
        """Return the notebook's form: the tokens."""
        about = f"{self.model} ({self.backend}), {self._about()}"
        return HeatMap(about, tuple(self.tokens), None).html()

    def _about(self) -> str:
        """Return the facts without the texts."""
        return ", ".join(self._facts()[len(self.texts) :])


@dataclass(frozen=True, repr=False)
class TextTokens(Shown):
    """Tokens of one text."""

    text: str
    """Text of the caller."""
    tokens: list[str]
    """Characters of each token, `[S]`; the name of a special token."""
    token_ids: list[int]
    offsets: list[Offset]
    """Code points in the text; `(0, 0)` for special tokens and a prompt's tokens."""

    def _facts(self) -> list[str]:
        return [short(self.text), f"{len(self.tokens)} tokens"]


@dataclass(frozen=True, repr=False)
class Target(TextTokens):
    """Target text that a decoder reads for a text."""

    truncated: bool


class Tensor:
    """Attribute of a result that is one of its `tensors`, if the call requested it."""

    def __init__(self, request: str, name: str = "") -> None:
        """Create the attribute; `request` says how a call requests the tensor `name`."""
        self.request, self.name = request, name

    def __set_name__(self, kind: type, name: str) -> None:
        """Use the attribute's name for the tensor, unless it has another one."""
        self.name = self.name or name

    @overload
    def __get__(self, result: None, kind: type) -> Tensor: ...
    @overload
    def __get__(self, result: Any, kind: type) -> NDArray[Any]: ...
    def __get__(self, result: Any, kind: type) -> Any:
        """Return the tensor of a result; raise a HeadscopeError if the reply lacks it."""
        if result is None:
            return self
        if self.name not in result.tensors:
            raise HeadscopeError(f"the reply has no {self.name}: request it ({self.request})")
        return result.tensors[self.name]


@dataclass(frozen=True, eq=False, repr=False)
class Encoding(TokenizedText):
    """Vectors of one text."""

    tensors: dict[str, NDArray[Any]]
    """Tensors `embeddings`, `pooled` and others, as far as they were requested."""
    layers: list[int] = field(default_factory=list)
    """Indices of the hidden states, if several were requested."""
    spans: list[Offset] | None = None
    """Code points of each span or chunk in the text; None if none were requested."""
    windows: int | None = None
    """Number of windows in which the text was encoded, with `overflow` "windows"."""

    embeddings = Tensor('outputs "tokens"')
    """Vectors of the tokens, `[S, H]`; for several layers `[layers, S, H]`."""
    pooled = Tensor('outputs "pooled"')
    """Vector of the text, `[D]`, of `vector_type`; for several layers `[layers, D]`."""
    multivector = Tensor('outputs "multivector"')
    """Vectors of late interaction, `[n, D]`, without the vectors of skipped tokens."""
    span_vectors = Tensor("`spans` or `chunk`")
    """Vector of each span or chunk, `[n, D]`; for several layers `[layers, n, D]`."""
    vector_ranges = Tensor('vector_type "int8" or "uint8"')
    """Lowest and highest value of each feature, `[2, D]`, for `vector_type` int8 and uint8."""
    sparse_indices = Tensor('outputs "sparse"')
    sparse_values = Tensor('outputs "sparse"')

    @property
    def sparse(self) -> SparseVector:
        """Sparse vector of the text."""
        return SparseVector(self.sparse_indices.astype(np.int64), self.sparse_values)

    def to_pandas(self) -> DataFrame:
        """Return a table with a row per token's vector; for several layers, indexed by layer."""
        return vectors_frame(self.embeddings, self.tokens, self.layers)

    def _facts(self) -> list[str]:
        tensors = [shape_of(name, tensor.shape) for name, tensor in self.tensors.items()]
        return [*super()._facts(), *tensors]


class Encodings(Shown, tuple[Encoding, ...]):
    """Encodings of B texts, in order."""

    __slots__ = ()

    @property
    def pooled(self) -> NDArray[Any]:
        """Vectors of all texts, `[B, D]` or `[layers, B, D]`; `[0, 0]` without texts."""
        vectors = [encoding.pooled for encoding in self]
        return np.stack(vectors, axis=-2) if vectors else np.empty((0, 0), np.float32)

    @property
    def span_vectors(self) -> NDArray[Any]:
        """Vectors of the spans or chunks of all texts, `[K, D]` or `[layers, K, D]`."""
        vectors = [encoding.span_vectors for encoding in self]
        return np.concatenate(vectors, axis=-2) if vectors else np.empty((0, 0), np.float32)

    def to_pandas(self) -> DataFrame:
        """Return a table with a row per text's vector; for several layers, indexed by layer."""
        texts = [" | ".join(encoding.texts) for encoding in self]
        return vectors_frame(self.pooled, texts, self[0].layers if self else ())

    def _facts(self) -> list[str]:
        pooled = bool(self) and all("pooled" in encoding.tensors for encoding in self)
        tokens = sum(len(encoding.tokens) for encoding in self)
        shape = [shape_of("pooled", self.pooled.shape)] if pooled else []
        return [f"{len(self)} texts", f"{tokens} tokens", *shape]

    def _repr_html_(self) -> str:
        """Return the notebook's form: a row for each of the first texts."""
        omission = [f"the first {MAX_ROWS} of {len(self)} texts"] if len(self) > MAX_ROWS else []
        rows = [
            (escape(" | ".join(start_of(text, LONG) for text in own.texts)), escape(own._about()))
            for own in self[:MAX_ROWS]
        ]
        return box([lines([", ".join(self._facts()), *omission]), table(("text", ""), rows)])


@dataclass(frozen=True)
class Label:
    """Label of a text, and its score."""

    score: float
    label: str


@dataclass(frozen=True)
class Span(Label):
    """Span of a text with a label: characters `start` to `end`, which are `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, repr=False)
class Rank(Shown):
    """Rank of one text among several."""

    index: int
    """Index of the text in the caller's list."""
    score: float
    text: str

    def _facts(self) -> list[str]:
        return [f"index={self.index}", f"score={self.score:.4f}", f"text={short(self.text)}"]


@dataclass(frozen=True, eq=False, repr=False)
class SparseVector(Shown):
    """Weights of n words of a vocabulary."""

    indices: NDArray[np.int64]
    """Token ids, or hashes of BM42, ascending, `[n]`."""
    values: NDArray[np.float32]
    """Weights `[n]`."""

    def to_pandas(self) -> DataFrame:
        """Return a table of indices and values."""
        return frame({"index": self.indices, "value": self.values})

    def _facts(self) -> list[str]:
        words = [f"{len(self.indices)} words"]
        if not len(self.indices):
            return words
        top = int(self.values.argmax())
        return [*words, f"largest {self.values[top]:.3f} at {self.indices[top]}"]


@dataclass(frozen=True)
class Difference:
    """Largest difference of an engine's tensor from PyTorch's, over all texts."""

    max_abs_diff: float
    min_cosine: float
    atol: float
    rtol: float
    passed: bool
    cosine_at_least: float | None = None
    layer: int | None = None
    """Layer of a hidden state or map; None for other tensors."""
    head: int | None = None
    """Head of a map; None for other tensors."""


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """Comparison of an engine with PyTorch on some texts, tensor by tensor."""

    passed: bool
    reference: str
    against: str
    inputs: int
    hidden: tuple[Difference, ...]
    attention: tuple[Difference, ...]
    pooled: Difference
    task: Difference | None = None
    """Difference of the task head's outputs; None without a task head."""

    @property
    def differences(self) -> dict[str, tuple[Difference, ...]]:
        """Differences of all tensors, by kind."""
        task = {} if self.task is None else {"task": (self.task,)}
        kinds = {"hidden": self.hidden, "attention": self.attention, "pooled": (self.pooled,)}
        return kinds | task

    def to_pandas(self) -> DataFrame:
        """Return a table of the differences, with a row per tensor."""
        kinds = self.differences.items()
        return frame([{"tensor": kind, **asdict(d)} for kind, several in kinds for d in several])

    def _facts(self) -> list[str]:
        passed = "passed" if self.passed else "failed"
        largest = [
            f"{kind} ≤ {max(difference.max_abs_diff for difference in differences):.1e}"
            for kind, differences in self.differences.items()
            if differences
        ]
        against = f"{self.against} against {self.reference}"
        return [passed, against, f"{self.inputs} inputs", *largest]


@dataclass(frozen=True, repr=False)
class Info(Shown):
    """Information of a service about a model; see `GET /info`."""

    model_id: str
    version: str
    max_input_length: int
    """Maximum tokens of one text."""
    max_client_batch_size: int
    """Maximum number of inputs of one request."""
    max_queue_tokens: int
    layers: int | None
    """Number of layers; None for a static embedding, which has no layers and heads."""
    heads: int | None
    hidden_size: int | None
    embedding_dimension: int
    engine: str
    provider: str
    precision: str
    backend: str
    status: str
    """Status of the service: `working`, `degraded` or `failed`."""
    fields: Mapping[str, Any]
    """All fields of the reply, by their names."""
    decoder_layers: int | None = None
    """Number of layers of the decoder; None without a decoder. So for the next one."""
    decoder_heads: int | None = None

    @property
    def picture_tokens(self) -> int:
        """Number of tokens of a picture: patches and special tokens."""
        images = self.fields.get("images")
        if not isinstance(images, Mapping):
            return self.max_input_length
        rows, columns = images["grid"]
        return rows * columns + len(images["special_tokens"])

    def _facts(self) -> list[str]:
        sizes = {"layers": self.layers, "heads": self.heads, "hidden_size": self.hidden_size}
        known = [f"{name} {size}" for name, size in sizes.items() if size is not None]
        engine = f"{self.engine} on {self.provider} in {self.precision}"
        return [repr(self.model_id), *known, engine, self.status]


@dataclass(frozen=True)
class ServedModel:
    """Model of a service."""

    id: str
    """Name of the model, for `model` in requests."""
    created: int
    """Time when its artifact was created, in seconds since 1970."""
