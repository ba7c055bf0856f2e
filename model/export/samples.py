"""Inputs of an encoder for its export: golden ones, calibration, similarity, and verification.

A scene of a picture is a pile of discs that hide one another, each of one colour with a gradient,
and radii r with a density of r⁻³: its edges and its spectrum resemble those of photographs (the
dead leaves model: Lee, Mumford and Huang 2001, https://doi.org/10.1023/A:1011109015675).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from tokenizers import Tokenizer

from model.artifact.golden import golden_inputs
from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from model.config.encoder import EncoderConfig, PatchLayout, patches_of
from model.config.files import read_object
from model.errors import ConfigError
from model.export.calibration import calibration_batches, similarity_batches
from model.images.processing import ImageProcessing, patch_rows
from model.numerics.batch import Batch, Floats, pack
from model.sources.sentence import tower_vectors
from model.tokenization.tokenizer import right_padding
from model.tokenization.vocabulary import model_ids, vocabulary_size


def with_text_tokens(
    folder: Path, sentence: SentenceConfig, tokenizer: Tokenizer
) -> SentenceConfig:
    """Return the config with the ids of a text tower's end and padding tokens.

    transformers pools the first token whose id is `eos_token_id`, or the token of the highest id
    where `eos_token_id` is 2, as in the configs of CLIP's first release. In an artifact both are
    the id that the tokenizer ends a text with, which therefore must be that token.
    """
    tower = tower_vectors(folder, read_object(folder / "config.json"))
    if tower is None:
        return sentence
    ids: dict[str, int | None] = {}
    if (end := tower.end_token_id) is not None:
        last = tokenizer.encode("a").ids[-1:]
        wanted = vocabulary_size(tokenizer) - 1 if end == "highest" else end
        if last != [wanted]:
            raise ConfigError(
                f"{folder / 'config.json'}: eos_token_id pools the token {wanted}, and the "
                f"tokenizer ends a text with {last[0] if last else 'no token'}: set eos_token_id "
                "to the id of the tokenizer's end token"
            )
        ids["end_token_id"] = wanted
    if tower.padded:
        ids["pad_token_id"] = tokenizer.token_to_id(right_padding(folder))
    return sentence.model_copy(update=ids)


def fill_up(tokenizer: Tokenizer, sentence: SentenceConfig) -> None:
    """Make a tokenizer fill up texts as `pad_token_id` of the config says."""
    if sentence.pad_token_id is not None:
        token = tokenizer.id_to_token(sentence.pad_token_id)
        tokenizer.enable_padding(
            length=sentence.max_length, pad_id=sentence.pad_token_id, pad_token=token
        )


CALIBRATION, SIMILARITY = 32, 16
"""Number of scenes for calibration, and of groups of three pictures for similarity."""
_DISCS = 300
_COLOURFULNESS = 0.12
"""Standard deviation of a disc's colour around its grey."""


def scene(shape: tuple[int, int, int], seed: int) -> Floats:
    """Return a scene `[h, w, C]` with values 0 … 1."""
    generator = np.random.default_rng(seed)
    height, width, channels = shape
    largest = max(height, width) / 2
    smallest = max(largest / 15, 0.5)
    picture = np.full(shape, generator.uniform(0.2, 0.8), np.float32)
    shares = generator.uniform(0, 1, _DISCS)
    radii = smallest / np.sqrt(1 - shares * (1 - (smallest / largest) ** 2))
    for radius in radii:
        y, x = generator.uniform(0, height), generator.uniform(0, width)
        grey = generator.uniform(0, 1)
        colour = grey + _COLOURFULNESS * generator.standard_normal(channels)
        slope = generator.normal(0, 0.1, 2) / radius
        top, bottom = max(int(y - radius), 0), min(int(y + radius) + 1, height)
        left, right = max(int(x - radius), 0), min(int(x + radius) + 1, width)
        down, across = np.arange(top, bottom)[:, None] - y, np.arange(left, right)[None] - x
        inside = down**2 + across**2 <= radius**2
        shade = (slope[0] * down + slope[1] * across)[..., None] + colour
        picture[top:bottom, left:right][inside] = shade[inside]
    picture += generator.normal(0, 0.02, shape)
    return picture.clip(0, 1)


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
        segments = self._config.text_segments
        return calibration_batches(self._tokenizer, self._max_length, segments, long=long)

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
    """Seeded pictures, and parts of pictures: a part is the first tokens of a picture."""

    def __init__(self, patches: PatchLayout, processing: ImageProcessing) -> None:
        """Take the patches of an encoder, and the processing of its pictures."""
        self._patches, self._processing = patches, processing
        self._shape = patches.rows * patches.size, patches.columns * patches.size, patches.channels

    def golden(self) -> Iterator[Sample]:
        """Yield parts of two scenes and of random pixels."""
        yield from (self._part(scene(self._shape, seed), GOLDEN_TOKENS) for seed in range(2))
        yield self.random(GOLDEN_TOKENS, np.random.default_rng(0))

    def calibration(self, *, long: bool = True) -> Iterator[Batch]:  # noqa: ARG002 - all are long
        """Yield scenes."""
        return self._batches(scene(self._shape, seed) for seed in range(CALIBRATION))

    def similarity(self) -> Iterator[Batch]:
        """Yield other scenes, each with its mirror image in less light and a blend with a third."""
        numbers = range(CALIBRATION, CALIBRATION + SIMILARITY)
        pairs = ((scene(self._shape, n), scene(self._shape, n + SIMILARITY)) for n in numbers)
        return self._batches(
            picture
            for own, other in pairs
            for picture in (own, 0.7 * own[:, ::-1], 0.6 * own + 0.4 * other)
        )

    def unusual(self, longest: int) -> list[Sample]:
        """Return black, white, a bright pixel, a chessboard of pixels, and an upturned scene."""
        black = np.zeros(self._shape, np.float32)
        bright, board = black.copy(), black.copy()
        bright[self._shape[0] // 2, self._shape[1] // 2] = 1
        board[::2, ::2] = board[1::2, 1::2] = 1
        pictures = (black, black + 1, bright, board, scene(self._shape, 0)[::-1])
        return [self._part(picture, min(longest, UNUSUAL_TOKENS)) for picture in pictures]

    def random(self, length: int, generator: np.random.Generator) -> Sample:
        """Return the first tokens of a picture of normally distributed pixel values."""
        values = generator.standard_normal(self._shape, np.float32)
        return self._sample(values, length)

    def _part(self, picture: Floats, length: int | None = None) -> Sample:
        """Return the first tokens of a picture `[h, w, C]` with values 0 … 1."""
        processing = self._processing
        values = picture * (255 * (processing.rescale_factor or 1))
        if processing.mean is not None and processing.std is not None:
            values = (values - np.array(processing.mean)) / np.array(processing.std)
        return self._sample(values.astype(np.float32), length)

    def _sample(self, values: Floats, length: int | None) -> Sample:
        patches = self._patches
        special = np.zeros((len(patches.special_tokens), patches.features), np.float32)
        rows = patch_rows(values.transpose(2, 0, 1), patches.size)
        ids = patches.token_ids[:length]
        return Sample(ids, [0] * len(ids), np.concatenate((special, rows))[:length])

    def _batches(self, pictures: Iterable[Floats]) -> Iterator[Batch]:
        samples = [self._part(picture) for picture in pictures]
        for start in range(0, len(samples), _BATCH):
            yield pack_samples(samples[start : start + _BATCH])


def samples_of(artifact: Artifact) -> Samples:
    """Return the inputs for an artifact's encoder."""
    manifest = artifact.manifest
    if manifest.images is not None:
        return PictureSamples(patches_of(manifest.config), manifest.images)
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    return TextSamples(tokenizer, manifest.config, manifest.sentence)
