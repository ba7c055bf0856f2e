"""Headscope's side: an artifact on the device, called as the service calls it, without HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.numerics.batch import Batch, Ids, pack
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import HeadMaps, capability
from model.runtimes.contract import Floats, Runtime
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer

Segments = tuple[Ids, Ids]
"""Token ids and segment ids of one text, `[S]` each."""
PARTS = 8
"""Number of parts of a list of texts; a part is tokenised while another is computed."""


class Encoding:
    """Encoder and tokenizer of an artifact on a device.

    Notation: S tokens of one text, H hidden size, N heads.
    """

    def __init__(self, artifact: Artifact, runtime: Runtime) -> None:
        self.artifact = artifact
        self.runtime = runtime
        self.config = artifact.manifest.config
        most = self.config.max_position_embeddings
        self.tokenizer = TextTokenizer(
            artifact.path(TOKENIZER), artifact.manifest.sentence, Limits(most, 64 * most)
        )

    def raw_tokenizer(self) -> Tokenizer:
        """Return the tokenizer itself, without limits."""
        return Tokenizer.from_file(str(self.artifact.path(TOKENIZER)))

    def tokenize(self, texts: Sequence[str]) -> list[Segments]:
        found = self.tokenizer.tokenize(texts, Options(truncate=True))
        return [(text.input_ids, text.segment_ids) for text in found]

    def pooled(self, batch: Batch) -> list[Floats]:
        """Return the unit vector `[H]` of each text."""
        last, features = self.config.num_hidden_layers, self.config.hidden_size
        mode = self.artifact.manifest.sentence.pooling
        texts = range(len(batch.padded_index))
        poolings = [TextPooling(text, last, mode, unit_features=features) for text in texts]
        return self.runtime.encode(batch, [], poolings)[1]

    def maps(self, text: Segments, layers: Sequence[int], heads: Sequence[int]) -> list[Floats]:
        """Return the maps `[heads, S, S]` of each layer."""
        states, _ = self.runtime.encode(pack([text]), [(0, layer) for layer in layers], [])
        heads_of = capability(self.runtime, HeadMaps)
        return [
            heads_of.attention(state, state, layer, heads)
            for layer, state in zip(layers, states, strict=True)
        ]

    def encode(self, texts: Sequence[Segments], budget: int, threads: int) -> None:
        """Compute the vectors of tokenised texts, `budget` padded tokens a batch."""
        with ThreadPoolExecutor(threads) as pool_of_threads:
            for _ in pool_of_threads.map(self._encode, batches(texts, budget)):
                pass

    def encode_texts(self, texts: Sequence[str], budget: int, threads: int) -> None:
        """Compute the vectors of texts, tokenised in parts."""

        def part(some: Sequence[str]) -> None:
            for batch in batches(self.tokenize(some), budget):
                self._encode(batch)

        size = -(-len(texts) // PARTS)
        parts = [texts[i : i + size] for i in range(0, len(texts), size)]
        with ThreadPoolExecutor(threads) as pool_of_threads:
            for _ in pool_of_threads.map(part, parts):
                pass

    def _encode(self, texts: Sequence[Segments]) -> None:
        self.pooled(pack(texts))


def batches(texts: Sequence[Segments], budget: int) -> Iterator[list[Segments]]:
    """Yield batches of similar lengths, the longest first: `budget` padded tokens, or one text."""
    ordered = sorted(texts, key=lambda text: len(text[0]), reverse=True)
    start = 0
    while start < len(ordered):
        count = max(1, budget // len(ordered[start][0]))
        yield ordered[start : start + count]
        start += count
