"""Plans of files: tasks for an engine, and conversion of its outputs to the columns of each text.

Notation: S tokens of one text, H hidden size, L layers, N heads, n chunks of a text, D features of
a vector.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.late_interaction import ROLES
from model.numerics.quantization import FLOAT32
from service.engines.contract import Floats, MapsTask, Output, Task, TextTask
from service.errors import InputTooLong, NoTaskHead, Unprocessable
from service.files.options import Encoding, Refused, TextArrays, UsageError, batches_by_length
from service.inference.attention.statistics import STATISTICS, shift, statistics
from service.inference.attention.stream import CHUNK_TOKENS, LAYER_BYTES
from service.inference.encoding import EncodeOptions
from service.inference.long_texts import Window, store, windows_of
from service.inference.outputs import field
from service.inference.outputs.chunks import chunks_of
from service.inference.outputs.declared import OUTPUTS
from service.inference.outputs.vector_types import quantization_of
from service.inference.plan import Plan
from service.inference.tokenization.text import ArrayText, Text, TextSpans
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.scheduler.outputs import requested

Run = Callable[[Sequence[Task]], list[Output]]
"""Function from a batch of tasks to their checked outputs."""
_UNBOUNDED = 2**62


@dataclass(frozen=True)
class FilePlan(ABC):
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
        return text


def computed(plan: Plan, texts: Sequence[Text], run: Run) -> list[field.TextArrays]:
    """Compute the arrays of a plan of /encode for a batch of texts."""
    outputs = run([plan.task(text) for text in texts])
    pairs = zip(plan.reductions(texts), outputs, strict=True)
    arrays = [reduce(output) for reduce, output in pairs]
    if plan.projects:
        plan.complete(arrays)
    return converted(plan, arrays)


def converted(plan: Plan, arrays: list[field.TextArrays]) -> list[field.TextArrays]:
    """Convert the vectors to the requested type.

    Raises:
        UsageError: a feature exceeds the type.

    """
    try:
        plan.convert(arrays)
    except Unprocessable as error:
        raise UsageError(_in_flags(re.sub(r"inputs\[\d+\]: ", "", str(error)))) from None
    return arrays


@dataclass(frozen=True, kw_only=True)
class VectorsPlan(FilePlan):
    """Plan for an output of /encode."""

    plan: Plan

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute the arrays of the output, after the `[S]` token ids of token vectors."""
        arrays = [tuple(own.values()) for own in computed(self.plan, texts, run)]
        if self.plan.options.outputs != ("tokens",):
            return arrays
        return [(text.input_ids, *own) for text, own in zip(texts, arrays, strict=True)]


@dataclass(frozen=True, kw_only=True)
class ImportancePlan(FilePlan):
    """Plan for the change of a text's vector without each head."""

    plan: Plan
    """Plan of the vectors."""

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[L, N]` for each text, ablating one head at a time in the whole batch."""
        config = self.manifest.config
        whole = computed(self.plan, texts, run)
        shifts = np.empty(
            (len(texts), config.num_hidden_layers, config.num_attention_heads), np.float32
        )
        for layer, head in np.ndindex(*shifts.shape[1:]):
            without = computed(self.plan.having(ablated=((layer, head),)), texts, run)
            pairs = zip(without, whole, strict=True)
            shifts[:, layer, head] = [shift(own["pooled"], other["pooled"]) for own, other in pairs]
        return [(importance,) for importance in shifts]


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan(FilePlan):
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

    def prepare(self, given: str, text: Text) -> Text | Refused:
        """Return the text, or the rejection of a text with too large maps of a layer."""
        del given
        tokens = len(text.input_ids)
        size = 4 * self.manifest.config.num_attention_heads * tokens**2
        if size <= LAYER_BYTES:
            return text
        return Refused(
            f"the text has {tokens} tokens: maps that are computed together take {size} bytes, "
            f"the limit is {LAYER_BYTES}"
        )

    def _ends(self, text: Text) -> list[int]:
        places: list[int] = np.isin(text.input_ids, [*self.separators]).nonzero()[0].tolist()
        return places


def plan_of(
    manifest: Manifest, vectors: TextVectors, encoding: Encoding, separators: Collection[int]
) -> FilePlan:
    """Return the plan for an encoding; of chunks, the plan of their vectors.

    Raises:
        NoTaskHead: the model lacks the output.
        UsageError: the options do not fit the model.

    """
    if encoding.kind == "stats":
        return StatisticsPlan(manifest, CHUNK_TOKENS, separators=separators)
    names = {"chunks": "spans", "importance": "pooled"}
    output = OUTPUTS[names.get(encoding.kind, encoding.kind)]
    if not output.offered(manifest):
        raise NoTaskHead(f"{manifest.model} gives no {output.remedy}")
    options = EncodeOptions(
        (output.name,),
        encoding.layer,
        encoding.pooling,
        encoding.dimensions,
        encoding.normalize,
        role=encoding.prompt_name if encoding.prompt_name in ROLES else None,
    )
    last = manifest.config.num_hidden_layers
    try:
        plan = Plan(options, manifest, vectors).having(
            quantization=quantization_of(
                encoding.vector_type, encoding.vector_ranges, options, vectors, last
            )
        )
    except Unprocessable as error:
        raise UsageError(_in_flags(str(error))) from None
    if encoding.kind == "importance":
        return ImportancePlan(manifest, plan=plan)
    return VectorsPlan(manifest, max_tokens=plan.max_tokens, plan=plan)


def _in_flags(message: str) -> str:
    """Return a message about fields of a request in terms of the command."""
    message = message.replace("outputs: multivector", "--outputs multivector")
    return re.sub(
        "`?(prompt_name|vector_type|vector_ranges)`?",
        lambda match: "--" + match[1].replace("_", "-"),
        message,
    )


STATE_BYTES = 2**29
"""Maximum bytes of the token vectors of a text, which are in memory together."""


@dataclass(slots=True, eq=False, kw_only=True)
class ChunkedText(ArrayText):
    """Text that is cut into chunks."""

    whole: Sequence[Window] = ()
    """Windows of the whole text, unless its chunks are encoded alone."""
    parts: Sequence[Text] = ()
    """Chunks as texts of their own, if they are encoded alone."""


@dataclass(frozen=True, kw_only=True)
class ChunksPlan(VectorsPlan):
    """Plan for the offsets of a text's chunks, and a vector of each."""

    encoding: Encoding
    tokenizer: TextTokenizer
    options: Options
    """Options of tokenisation of a chunk."""

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
        return ChunkedText(**own | {"spans": chunks}, whole=windows, parts=parts)

    def compute(self, texts: Sequence[Text], run: Run) -> list[TextArrays]:
        """Compute `[n]` starts and ends in code points, and `[n, D]` vectors for each text."""
        chunked = [text for text in texts if isinstance(text, ChunkedText)]
        arrays = self._late(chunked, run) if self.encoding.late else self._alone(chunked, run)
        return [
            (*own["spans"].T.astype(np.int64), own["span_vectors"])
            for own in converted(self.plan, arrays)
        ]

    def _late(self, texts: Sequence[ChunkedText], run: Run) -> list[field.TextArrays]:
        """Return the vectors of all chunks, pooled over the token vectors of whole texts."""
        pairs = zip(texts, self._states(texts, run), strict=True)
        arrays = [self.plan.raw(text, Output([state])) for text, state in pairs]
        self.plan.complete(arrays)
        return arrays

    def _states(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the token vectors `[S, H]` of each text, computed in windows if it is long."""
        size = self.manifest.config.hidden_size
        states = [np.empty((text.size, size), np.float32) for text in texts]
        work: list[tuple[int, Window]] = [
            (index, window) for index, text in enumerate(texts) for window in text.whole
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
        return TextTask(ids, segments, self.plan.states)

    def _alone(self, texts: Sequence[ChunkedText], run: Run) -> list[field.TextArrays]:
        """Return the vectors of all chunks, each encoded as a text of its own."""
        parts = [part for text in texts for part in text.parts]
        plan = self.plan.having(outputs=("pooled",), quantization=FLOAT32)
        vectors = np.empty((len(parts), plan.features), np.float32)
        for batch in batches_by_length([part.size for part in parts], self.batch_tokens):
            some = [parts[place] for place in batch]
            for place, own in zip(batch, computed(plan, some, run) if some else (), strict=True):
                vectors[place] = own["pooled"]
        spans: list[TextSpans] = [requested(text.spans) for text in texts]
        rows = np.split(vectors, np.cumsum([len(own.ranges) for own in spans])[:-1])
        return [
            {"spans": own.places, "span_vectors": part}
            for own, part in zip(spans, rows, strict=True)
        ]
