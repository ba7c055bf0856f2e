"""Inputs of an encoder for its export: golden ones, calibration, similarity, and verification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from tokenizers import Tokenizer

from model.artifact.golden import golden_inputs
from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from model.config.encoder import EncoderConfig, patches_of
from model.export.calibration import calibration_batches, calibration_lines, similarity_batches
from model.export.picture_samples import PictureScenes
from model.export.text_tokens import fill_up
from model.images.processing import ImageProcessing
from model.numerics.batch import Batch, Floats, pack
from model.tokenization.vocabulary import model_ids

TEXTS: tuple[str | tuple[str, str], ...] = (
    "",
    "a",
    "The animal didn't cross the street because it was too tired",
    ("The animal didn't cross the street", "it was too tired"),
    "naïve café, Ünïcödé, ﬁne print and ½ of it",
    "注意力机制的核心思想",
    "שלום עולם، مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🏳️‍🌈 and other graphemes",
    "[CLS] a literal [SEP] in the text [MASK]",
    "tabs\tand\nnew lines\x00and control\x07characters",
    "Donaudampfschifffahrtsgesellschaftskapitän" * 4,
    "!?.,;:-_#'+*~`´^°",
)
"""Unusual texts."""
GOLDEN_TOKENS = 32
"""Maximum tokens of a golden picture, the first ones: its maps are part of the artifact."""
UNUSUAL_TOKENS = 256
"""Maximum tokens of an unusual picture: the maps of all of them are in memory together."""
_BATCH = 4
"""Number of pictures of a batch."""


class Sample(NamedTuple):
    """Input of the encoder."""

    input_ids: Sequence[int]
    """`[S]`."""
    segment_ids: Sequence[int]
    """`[S]`."""
    pixels: Floats | None = None
    """`[S, F]` of a picture; None for a text."""


def pack_samples(samples: Sequence[Sample]) -> Batch:
    """Pack inputs end to end, all texts or all pictures."""
    pixels = [sample.pixels for sample in samples if sample.pixels is not None]
    return pack([sample[:2] for sample in samples], pixels=pixels)


class Samples(Protocol):
    """Inputs for the export of one encoder, the same each time."""

    def golden(self) -> Iterator[Sample]:
        """Yield the golden inputs."""

    def calibration(self, *, long: bool = True) -> Iterator[Batch]:
        """Yield typical inputs in batches; with `long` also one of the greatest length."""

    def similarity(self) -> Iterator[Batch]:
        """Yield other inputs in batches, in groups with partly equal meaning."""

    def unusual(self, longest: int) -> list[Sample]:
        """Return unusual inputs of at most `longest` tokens."""

    def random(self, length: int, generator: np.random.Generator) -> Sample:
        """Return a random input of `length` tokens."""


class TextSamples(Samples):
    """Texts."""

    def __init__(
        self, tokenizer: Tokenizer, config: EncoderConfig, sentence: SentenceConfig
    ) -> None:
        """Take the encoder's tokenizer, which pads texts from now on as the config says."""
        fill_up(tokenizer, sentence)
        self._tokenizer, self._config = tokenizer, config
        self._max_length = sentence.max_length

    def golden(self) -> Iterator[Sample]:
        """Yield the golden texts."""
        for ids, segments in golden_inputs(self._tokenizer, self._config):
            yield Sample(ids.tolist(), segments.tolist())

    def calibration(self, *, long: bool = True) -> Iterator[Batch]:
        """Yield the lines of `calibration.txt`; with `long` also one text of all lines."""
        batches = calibration_batches if long else calibration_lines
        return batches(self._tokenizer, self._max_length, self._config.text_segments)

    def similarity(self) -> Iterator[Batch]:
        """Yield the lines of `similarity.txt`."""
        return similarity_batches(self._tokenizer, self._max_length, self._config.text_segments)

    def unusual(self, longest: int) -> list[Sample]:
        """Return `TEXTS`, without texts that have no tokens or too many segments."""
        self._tokenizer.enable_truncation(min(self._max_length, longest))
        encodings = [
            self._tokenizer.encode(*([text] if isinstance(text, str) else text)) for text in TEXTS
        ]
        return [
            Sample(
                model_ids(self._tokenizer, encoding),
                [0] * len(encoding) if self._config.text_segments > 1 else encoding.type_ids,
            )
            for encoding in encodings
            if encoding.ids and self._config.knows_segment(max(encoding.type_ids))
        ]

    def random(self, length: int, generator: np.random.Generator) -> Sample:
        """Return random token ids, all of one random segment below `text_segments`."""
        ids = generator.integers(0, self._config.vocab_size, length).tolist()
        segments = self._config.text_segments
        segment = int(generator.integers(segments)) if segments > 1 else 0
        return Sample(ids, [segment] * length)


class PictureSamples(Samples):
    """Pictures, and parts of pictures: a part is the first tokens of a picture."""

    def __init__(self, config: EncoderConfig, processing: ImageProcessing) -> None:
        """Take the config of an encoder of pictures, and the processing of its pictures."""
        self._scenes = PictureScenes(patches_of(config), processing)

    def golden(self) -> Iterator[Sample]:
        """Yield parts of two scenes and of random pixels."""
        for pixels in (*self._scenes.calibration(2), self._scenes.noise(np.random.default_rng(0))):
            yield self._part(pixels, GOLDEN_TOKENS)

    def calibration(self, *, long: bool = True) -> Iterator[Batch]:  # noqa: ARG002 - all are long
        """Yield scenes."""
        return self._batches(self._scenes.calibration())

    def similarity(self) -> Iterator[Batch]:
        """Yield other scenes, each with pictures that resemble it."""
        return self._batches(self._scenes.similarity())

    def unusual(self, longest: int) -> list[Sample]:
        """Return pictures of one colour, and of the finest patterns."""
        most = min(longest, UNUSUAL_TOKENS)
        return [self._part(pixels, most) for pixels in self._scenes.unusual()]

    def random(self, length: int, generator: np.random.Generator) -> Sample:
        """Return the first tokens of a picture of random pixels."""
        return self._part(self._scenes.noise(generator), length)

    def _part(self, pixels: Floats, length: int) -> Sample:
        ids = self._scenes.input_ids[:length]
        return Sample(ids, [0] * len(ids), pixels[:length])

    def _batches(self, pictures: Iterator[Floats]) -> Iterator[Batch]:
        samples = [self._part(pixels, len(pixels)) for pixels in pictures]
        for start in range(0, len(samples), _BATCH):
            yield pack_samples(samples[start : start + _BATCH])


def samples_of(artifact: Artifact) -> Samples:
    """Return the inputs for an artifact's encoder."""
    manifest = artifact.manifest
    if manifest.images is not None:
        return PictureSamples(manifest.config, manifest.images)
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    return TextSamples(tokenizer, manifest.config, manifest.sentence)
