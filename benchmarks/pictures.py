"""Vectors of pictures by an encoder of ViT-B/16's shape, beside transformers and others, in turn.

    python -m benchmarks.pictures [--layers 12] [--rounds 7] [--count 8] [--precisions fp32 int8]

The model is a CLIP with seeded random weights, whose text tower is tiny: 224 × 224 pixels, 197
tokens. Each way gets the same opened pictures of 640 × 480 pixels and returns their projected
vectors: Headscope prepares and computes in this process, as the service does in its threads;
transformers and sentence-transformers compute in float32 with fused attention. Vectors are compared
before anything is timed. The last lines are the preparation alone, and one head's map of one
picture against its vector (goal: at most 1.1).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import CLIPModel as ClipModule
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

from benchmarks.harness.timing import in_turn, median_ratio
from benchmarks.harness.vectors import least_cosine
from model.artifact.manifest import Artifact
from model.artifact.vectors import TextVectors
from model.config.precision import Precision
from model.export.exporter import export
from model.images.pixels import prepare
from model.images.processing import patch_rows
from model.numerics.batch import Batch, pack
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads, Resources
from model.runtimes.registry import load_runtime

WIDTH, HEIGHT = 640, 480
LEAST_COSINE: dict[str, float] = {"fp32": 0.99999, "bf16": 0.999, "int8": 0.98}
TEXT = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
Ways = dict[str, Callable[[], Any]]


def write_checkpoint(folder: Path, layers: int) -> Path:
    """Write the model, its tokenizer of single bytes, and its image processor."""
    torch.manual_seed(0)
    signs = sorted(ByteLevel.alphabet())
    names = [*signs, *(f"{sign}</w>" for sign in signs), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={name: index for index, name in enumerate(names)}, merges=[])
    size = len(names)
    text = TEXT | {"vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1}
    vision = {"hidden_size": 768, "num_hidden_layers": layers, "num_attention_heads": 12}
    vision |= {"intermediate_size": 3072, "patch_size": 16, "image_size": 224}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    CLIPProcessor(CLIPImageProcessorPil(), tokenizer).save_pretrained(folder)
    return folder


def pictures(count: int) -> list[Image.Image]:
    """Return pictures of smooth random colours."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (count, 12, 16, 3), np.uint8)
    return [
        Image.fromarray(one).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for one in coarse
    ]


class Headscope:
    """The vision tower of an export, in this process."""

    def __init__(self, artifact: Artifact, threads: int) -> None:
        assert artifact.vision is not None
        self.artifact = tower = artifact.vision
        self.config = tower.manifest.config
        self.runtime = load_runtime(tower, Resources(threads=threads))
        self.vectors = TextVectors.of(tower)
        self.threads = ThreadPoolExecutor(threads)
        layout = self.config.embeddings.patches
        assert layout is not None
        self.layout = layout
        self.ids = np.array([1] + [0] * (layout.tokens - 1))

    def prepared(self, image: Image.Image) -> np.ndarray:
        """Return the pixels of a picture's tokens, `[S, F]`."""
        processing = self.artifact.manifest.images
        assert processing is not None
        rows = patch_rows(prepare(image, processing).values, self.layout.size)
        return np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows])

    def batch(self, images: Sequence[Image.Image]) -> Batch:
        """Return the batch of some pictures, which threads prepare."""
        pixels = [*self.threads.map(self.prepared, images)]
        return pack([(self.ids, 0 * self.ids)] * len(images), pixels=pixels)

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Return projected vectors, a picture a batch for each thread at a time."""

        def one(image: Image.Image) -> np.ndarray:
            batch = pack([(self.ids, 0 * self.ids)], pixels=[self.prepared(image)])
            return self.vector(batch)[0]

        return np.stack(self.vectors.project([*self.threads.map(one, images)]))

    def vector(self, batch: Batch) -> list[np.ndarray]:
        """Return the pooled vector of a batch's only picture."""
        pooling = TextPooling(0, self.config.num_hidden_layers, self.vectors.pooling)
        return self.runtime.encode(batch, [], [pooling])[1]

    def head(self, batch: Batch) -> np.ndarray:
        """Return the map of a head of the last layer."""
        layer = self.config.num_hidden_layers - 1
        (state,) = self.runtime.hidden_states(batch, [layer])
        return capability(self.runtime, Heads).attention(state, state, layer, [0])


def measure(folder: Path, layers: int, rounds: int, count: int, chosen: list[Precision]) -> None:
    """Print the ratios of all ways."""
    checkpoint, threads = write_checkpoint(folder / "clip", layers), torch.get_num_threads()
    images = pictures(count)
    own = {
        name: Headscope(export(checkpoint, folder / name, "clip", name), threads) for name in chosen
    }
    model = CLIPModel.from_pretrained(checkpoint).eval()
    processor = CLIPImageProcessorPil.from_pretrained(checkpoint)
    module = SentenceTransformer(modules=[ClipModule(str(checkpoint))], device="cpu")

    def transformers() -> np.ndarray:
        with torch.inference_mode():
            given = processor(images, return_tensors="pt")
            return model.get_image_features(**given).pooler_output.numpy()

    ways: Ways = {"transformers": transformers}
    ways["sentence-transformers"] = lambda: module.encode(images, batch_size=count)
    ways |= {f"Headscope {name}": partial(one.encode, images) for name, one in own.items()}
    expected = transformers()
    for way, encode in ways.items():
        least = least_cosine(encode(), expected)
        print(f"{way}: least cosine {least:.6f}")
        if least < LEAST_COSINE.get(way.removeprefix("Headscope "), 0.99999):
            raise SystemExit(f"{way} computes other vectors")
    seconds = in_turn(ways, rounds)
    for way, some in seconds.items():
        rate = count / statistics.median(some)
        ratio = median_ratio(seconds["transformers"], some)
        print(f"{way}: {rate:.2f} pictures/s, {ratio:.2f} × transformers")
    for name, one in own.items():
        single = one.batch(images[:1])
        alone: Ways = {
            "vector": partial(one.vector, single),
            "head": partial(one.head, single),
            "preparation": partial(one.batch, images[:1]),
        }
        of_one = in_turn(alone, rounds)
        ratio = median_ratio(of_one["head"], of_one["vector"])
        shares = ", ".join(
            f"{kind} {1e3 * statistics.median(some):.1f} ms" for kind, some in of_one.items()
        )
        print(f"Headscope {name}, one picture: {shares}; one head {ratio:.2f} × its vector")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=8, help="pictures of a call")
    parser.add_argument(
        "--precisions", nargs="+", choices=LEAST_COSINE, default=["fp32", "int8"], metavar="NAME"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.layers, options.rounds, options.count, options.precisions)


if __name__ == "__main__":
    main()
