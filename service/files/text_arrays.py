"""Plans for each kind of output: tasks for an engine, and conversion of its outputs to arrays.

Notation: S tokens of one text, H hidden size, L layers, N heads, V words of the vocabulary, n
chunks of a text, D features of a vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.quantization import FLOAT32, Quantization
from service.engines.contract import Ablated, Floats, MapsTask, Output, Pooling, Task, TextTask
from service.errors import InputTooLong, NoTaskHead, Unprocessable
from service.files.encoder import Refused, batches_by_length
from service.files.options import Array, Encoding, TextArrays, UsageError
from service.inference.attention.statistics import STATISTICS, shift, statistics
from service.inference.attention.stream import CHUNK_TOKENS, LAYER_BYTES
from service.inference.chunks import chunks_of
from service.inference.encoding import EncodeOptions
from service.inference.head_vectors import HeadVectors, sparse_vector
from service.inference.long_texts import Window, store, windows_of
from service.inference.text_spans import TextSpans, span_vectors
from service.inference.tokenization.text import ArrayText, Text
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.inference.vector_types import quantization_of
from service.scheduler.outputs import requested

Run = Callable[[Sequence[Task]], list[Output]]
"""Function from a batch of tasks to their checked outputs."""
_UNBOUNDED = 2**62


def _states_task(text: Text, layers: tuple[int, ...]) -> TextTask:
    """Return the task of a text's hidden states."""
    return TextTask(text.input_ids, text.segment_ids, layers, pixels=text.pixels)


@dataclass(frozen=True)
class Plan(ABC):
    """Plan for one kind of output of a model."""

    manifest: Manifest
    batch_tokens: int = _UNBOUNDED
    """Maximum tokens of a batch."""
    max_tokens: int | None = None
    """Maximum tokens of a text; the model's limit when None."""

    @abstractmethod
    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute the arrays of each text of a batch, in the order of the kind's fields."""

    def prepare(self, given: str, text: Text) -> Text | Refused:
        """Return a text as it is computed, or its rejection."""
        del given
        return self.refusal(text) or text

    def refusal(self, text: Text) -> Refused | None:
        """Return the rejection of a text that cannot be computed, else None."""
        del text
        return None


@dataclass(frozen=True, kw_only=True)
class PooledPlan(Plan):
    """Plan for a vector of each text."""

    vectors: TextVectors
    encoding: Encoding
    layer: int
    quantization: Quantization = FLOAT32

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[D]` for each text, in the requested type."""
        return [(vector,) for vector in self.typed(self.pooled(texts, run))]

    def typed(self, vectors: Sequence[Floats]) -> Array:
        """Return vectors as an array of the requested type."""
        try:
            return self.quantization(np.stack(vectors))
        except OverflowError as error:
            raise UsageError(f"--vector-type {self.encoding.vector_type}: {error}") from None

    def pooled(self, texts: Sequence[Text], run: Run, ablated: Ablated = ()) -> list[Floats]:
        """Return the vector of each text without the ablated heads."""
        wanted, sentence = self.encoding, self.manifest.sentence
        mode = wanted.pooling or sentence.pooling
        outputs = run(
            [
                TextTask(
                    text.input_ids,
                    text.segment_ids,
                    pooling=Pooling(self.layer, mode, text.first_pooled(sentence)),
                    ablated=ablated,
                    pixels=text.pixels,
                )
                for text in texts
            ]
        )
        pooled = [requested(output.pooled) for output in outputs]
        return self.vectors.finish(pooled, wanted.pooling, wanted.dimensions, wanted.normalize)


@dataclass(frozen=True, kw_only=True)
class ImportancePlan(PooledPlan):
    """Plan for the change of a text's vector without each head."""

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[L, N]` for each text, ablating one head at a time in the whole batch."""
        config = self.manifest.config
        whole = self.pooled(texts, run)
        shifts = np.empty(
            (len(texts), config.num_hidden_layers, config.num_attention_heads), np.float32
        )
        for layer, head in np.ndindex(*shifts.shape[1:]):
            without = self.pooled(texts, run, ((layer, head),))
            shifts[:, layer, head] = [shift(*both) for both in zip(without, whole, strict=True)]
        return [(importance,) for importance in shifts]


@dataclass(frozen=True, kw_only=True)
class TokensPlan(Plan):
    """Plan for a vector of each token."""

    layer: int

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[S]` token ids and `[S, H]` vectors for each text."""
        outputs = run([_states_task(text, (self.layer,)) for text in texts])
        return [
            (text.input_ids, output.hidden[0]) for text, output in zip(texts, outputs, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class SparsePlan(Plan):
    """Plan for the words of the vocabulary with non-zero weights."""

    head: HeadVectors

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute token ids, ascending, and their weights for each text."""
        outputs = run([self.head.encoded(text) for text in texts])
        return [
            sparse_vector(self.head.task, requested(output.scores), text.input_ids)
            for text, output in zip(texts, outputs, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class MultivectorPlan(Plan):
    """Plan for the vectors of late interaction."""

    head: HeadVectors

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[n, D]`, a vector of each token that has one, for each text."""
        tasks = [self.head.encoded(text) for text in texts]
        return [
            (requested(self.head.multivector(requested(output.scores), task.input_ids)),)
            for task, output in zip(tasks, run(tasks), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan(Plan):
    """Plan for the statistics of every head."""

    separators: Collection[int]

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[L, N]` for each of `STATISTICS`, with the maps of one layer at a time."""
        config = self.manifest.config
        layers, heads = config.num_hidden_layers, tuple(range(config.num_attention_heads))
        wanted = tuple(range(layers))
        tasks_of_states = [
            TextTask(text.input_ids, text.segment_ids, pixels=text.pixels, map_layers=wanted)
            for text in texts
        ]
        arrays: list[TextArrays] = []
        for text, output in zip(texts, run(tasks_of_states), strict=True):
            ends = self._ends(text)
            tasks = [
                MapsTask(state, state, layer, heads, segment=text.segment)
                for layer, state in enumerate(output.map_states)
            ]
            of_layers = [statistics(requested(run([task])[0].maps), ends) for task in tasks]
            arrays.append(
                tuple(np.stack([layer[name] for layer in of_layers]) for name in STATISTICS)
            )
        return arrays

    def refusal(self, text: Text) -> Refused | None:
        """Reject a text with too large maps of a layer."""
        tokens = len(text.input_ids)
        size = 4 * self.manifest.config.num_attention_heads * tokens**2
        if size <= LAYER_BYTES:
            return None
        return Refused(
            f"the text has {tokens} tokens: maps that are computed together take {size} bytes, "
            f"the limit is {LAYER_BYTES}"
        )

    def _ends(self, text: Text) -> list[int]:
        places: list[int] = np.isin(text.input_ids, [*self.separators]).nonzero()[0].tolist()
        return places


def plan_of(
    manifest: Manifest, vectors: TextVectors, encoding: Encoding, separators: Collection[int]
) -> Plan:
    """Return the plan for an encoding."""
    layer = encoding.layer % (manifest.config.num_hidden_layers + 1)
    match encoding.kind:
        case "pooled" | "chunks":
            quantization = _quantization(manifest, vectors, encoding, layer)
            return PooledPlan(
                manifest,
                vectors=vectors,
                encoding=encoding,
                layer=layer,
                quantization=quantization,
            )
        case "importance":
            return ImportancePlan(manifest, vectors=vectors, encoding=encoding, layer=layer)
        case "tokens":
            return TokensPlan(manifest, layer=layer)
        case "sparse":
            if manifest.task is None or "sparse" not in manifest.task.vectors:
                raise NoTaskHead(
                    f"{manifest.model} gives no sparse vectors: take a sparse encoder (SPLADE)"
                )
            return SparsePlan(manifest, head=HeadVectors(manifest.task, ("sparse",)))
        case "multivector":
            if manifest.task is None or "multivector" not in manifest.task.vectors:
                raise NoTaskHead(
                    f"{manifest.model} gives no token vectors for MaxSim: take a late-interaction "
                    "model"
                )
            return _multivector(manifest, HeadVectors(manifest.task, ("multivector",)), encoding)
        case "stats":
            return StatisticsPlan(manifest, CHUNK_TOKENS, separators=separators)


def _multivector(manifest: Manifest, head: HeadVectors, wanted: Encoding) -> MultivectorPlan:
    """Return the plan for the vectors of texts in the role that the prompt names."""
    try:
        head = head.in_role(wanted.prompt_name)
    except Unprocessable as error:
        text = str(error).replace("outputs: multivector", "--outputs multivector")
        raise UsageError(text.replace("`prompt_name`", "--prompt-name")) from None
    return MultivectorPlan(manifest, max_tokens=head.max_tokens, head=head)


def _quantization(
    manifest: Manifest, vectors: TextVectors, wanted: Encoding, layer: int
) -> Quantization:
    """Return the conversion of vectors to the requested type."""
    options = EncodeOptions(
        layer,
        tokens=False,
        pooled=True,
        pooling=wanted.pooling,
        dimensions=wanted.dimensions,
        normalize=wanted.normalize,
    )
    last = manifest.config.num_hidden_layers
    try:
        return quantization_of(wanted.vector_type, wanted.vector_ranges, options, vectors, last)
    except Unprocessable as error:
        text = str(error).replace("vector_type", "--vector-type")
        raise UsageError(text.replace("vector_ranges", "--vector-ranges")) from None


STATE_BYTES = 2**29
"""Maximum bytes of the token vectors of a text, which are in memory together."""


@dataclass(slots=True, eq=False, kw_only=True)
class ChunkedText(ArrayText):
    """Text that is cut into chunks."""

    chunks: TextSpans
    windows: Sequence[Window] = ()
    """Windows of the whole text, unless its chunks are encoded alone."""
    parts: Sequence[Text] = ()
    """Chunks as texts of their own, if they are encoded alone."""


@dataclass(frozen=True, kw_only=True)
class ChunksPlan(PooledPlan):
    """Plan for the offsets of a text's chunks, and a vector of each."""

    tokenizer: TextTokenizer
    options: Options
    """Options of tokenisation of a chunk."""

    @classmethod
    def of(
        cls, plan: PooledPlan, tokenizer: TextTokenizer, options: Options, batch_tokens: int
    ) -> ChunksPlan:
        """Return the plan for chunks with the options of a plan for whole texts."""
        own = {part.name: getattr(plan, part.name) for part in fields(plan)}
        own["batch_tokens"] = batch_tokens
        return cls(**own, tokenizer=tokenizer, options=options)

    def prepare(self, given: str, text: Text) -> Text | Refused:
        """Cut a text into chunks, and tokenise chunks that are encoded alone."""
        size = 4 * len(text.input_ids) * self.manifest.config.hidden_size
        if self.encoding.late and size > STATE_BYTES:
            return Refused(
                f"the text has {len(text.input_ids)} tokens, whose vectors take {size} bytes; the "
                f"limit is {STATE_BYTES}: split it, or pass --no-late"
            )
        windows: Sequence[Window] = ()
        parts: Sequence[Text] = ()
        try:
            (chunks,) = chunks_of([given], [text], self.encoding.chunk)
            if self.encoding.late:
                windows = windows_of(text, self.tokenizer.limits.max_tokens, "the text")
            else:
                alone = [given[start:end] for start, end in chunks.places.tolist()]
                parts = self.tokenizer.tokenize(alone, self.options)
        except (InputTooLong, Unprocessable) as error:
            return Refused.of(error)
        arrays = text.in_arrays()
        own = {part.name: getattr(arrays, part.name) for part in fields(ArrayText) if part.init}
        return ChunkedText(**own, chunks=chunks, windows=windows, parts=parts)

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[n]` starts and ends in code points, and `[n, D]` vectors for each text."""
        chunked = [text for text in texts if isinstance(text, ChunkedText)]
        rows = self._late(chunked, run) if self.encoding.late else self._alone(chunked, run)
        features = self.vectors.kept(self.encoding.pooling, self.encoding.dimensions)
        vectors = self.typed([*rows, np.zeros(features, np.float32)])[:-1]
        counts = [len(text.chunks.ranges) for text in chunked]
        parts = np.split(vectors, np.cumsum(counts)[:-1])
        return [
            (*text.chunks.places.T.astype(np.int64), part)
            for text, part in zip(chunked, parts, strict=True)
        ]

    def _late(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the vectors of all chunks, pooled over the token vectors of whole texts."""
        wanted = self.encoding
        mode = wanted.pooling or self.manifest.sentence.pooling
        pooled = [
            vector
            for text, state in zip(texts, self._states(texts, run), strict=True)
            for vector in span_vectors(state, text.chunks.ranges, mode)
        ]
        return self.vectors.finish(pooled, wanted.pooling, wanted.dimensions, wanted.normalize)

    def _states(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the token vectors `[S, H]` of each text, computed in windows if it is long."""
        size = self.manifest.config.hidden_size
        states = [np.empty((len(text.input_ids), size), np.float32) for text in texts]
        work: list[tuple[int, Window]] = [
            (index, window) for index, text in enumerate(texts) for window in text.windows
        ]
        lengths = [len(window.tokens) for _, window in work]
        for batch in batches_by_length(lengths, self.batch_tokens):
            some = [work[place] for place in batch]
            outputs = run([self._task(texts[index], window) for index, window in some])
            for (index, window), output in zip(some, outputs, strict=True):
                store(window, output.hidden[0], states[index])
        return states

    def _task(self, text: Text, window: Window) -> TextTask:
        ids, segments = text.input_ids[window.tokens], text.segment_ids[window.tokens]
        return TextTask(ids, segments, (self.layer,))

    def _alone(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the vectors of all chunks, each encoded as a text of its own."""
        parts = [part for text in texts for part in text.parts]
        vectors: dict[int, Floats] = {}
        lengths = [len(part.input_ids) for part in parts]
        for batch in batches_by_length(lengths, self.batch_tokens) if parts else []:
            found = self.pooled([parts[place] for place in batch], run)
            vectors |= zip(batch, found, strict=True)
        return [vectors[place] for place in range(len(parts))]
