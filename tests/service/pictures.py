"""Models of pictures for the service's tests, without graphs, and files of pictures."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
from PIL import Image

from model.artifact.manifest import Artifact
from model.config.encoder import EmbeddingLayout, PatchLayout
from model.images.processing import ImageProcessing
from tests.service.several import variant

PATCHES = PatchLayout(size=4, rows=2, columns=3, special_tokens=("[CLS]",))
STEPS = ImageProcessing(resize=(8, 12), rescale_factor=1 / 255, mean=(0.5,) * 3, std=(0.25,) * 3)


def pictures_of(artifact: Artifact, name: str = "pictures", hidden_size: int = 8) -> Artifact:
    """Return an artifact as a model of pictures of 2 × 3 patches, for engines without graphs."""
    config = artifact.manifest.config.model_copy(
        update={
            "hidden_size": hidden_size,
            "vocab_size": 2,
            "max_position_embeddings": PATCHES.tokens,
            "embeddings": EmbeddingLayout(patches=PATCHES),
        }
    )
    own = artifact.manifest.model_copy(update={"config": config, "images": STEPS})
    changed = variant(artifact, name, hidden_size)
    sentence = own.sentence.model_copy(update={"max_length": PATCHES.tokens})
    update = {"config": config, "images": STEPS, "model": name, "sentence": sentence}
    return Artifact(changed.folder, own.model_copy(update=update), f"{name} {artifact.sha256}")


def picture(seed: int = 0, width: int = 30, height: int = 20, kind: str = "PNG") -> bytes:
    """Return the file of a picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def element(data: bytes) -> dict[str, str]:
    """Return a picture as an element of a request's inputs."""
    return {"image": base64.b64encode(data).decode()}
