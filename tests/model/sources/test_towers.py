"""Towers of CLIP and SigLIP, against transformers and sentence-transformers' own vectors."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import CLIPModel

from model.artifact.vectors import TextVectors
from model.checkpoint import load_checkpoint
from model.config.encoder import patches_of
from model.errors import CheckpointError
from model.export.module_tensors import module_tensors, pooling_tensors
from model.export.samples import fill_up, with_text_tokens
from model.families.registry import read_config
from model.images.opening import ImageLimits, open_image
from model.images.pixels import prepare
from model.images.processing import read_processing
from model.numerics.batch import Batch, pack
from model.packing import PackedBatch
from model.sources.files import transformer_folder
from model.sources.overlay import as_folders, split
from model.sources.sentence import read_sentence
from model.tokenization.tokenizer import load_tokenizer
from model.tokenization.vocabulary import model_ids
from tests.model.checkpoints import edit_json
from tests.model.families.picture_parity import packed_pictures
from tests.model.sentences import write_modules
from tests.model.tower_checkpoints import clip, save_towers, siglip


def test_each_tower_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    for model, size in ((clip(), 18), (siglip(), 16)):
        name = model.config.model_type
        (tmp_path / f"{name} links").mkdir()
        made = split(save_towers(model, tmp_path / name), tmp_path / f"{name} links")
        assert list(made) == ["text", "vision"]
        for tower, folder in made.items():
            own = read_config(folder)
            assert own.model_type == f"{name}_{tower}_model"
            sentence = read_sentence(folder, own.max_position_embeddings, own.hidden_size)
            assert sentence.vector_size(own.hidden_size) == size
            encoder = load_checkpoint(folder, own)
            first = encoder.layers[0].attention.query.weight
            theirs = getattr(model, f"{tower}_model").encoder.layers[0].self_attn.q_proj.weight
            torch.testing.assert_close(first, theirs, atol=0, rtol=0)


def test_modules_of_sentence_transformers_are_linked(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    save_towers(clip(), folder)
    write_modules(folder, "CLIPModel", "Normalize", first="0_CLIPModel")
    for path in [path for path in folder.iterdir() if path.is_file()]:
        if path.name != "modules.json":
            shutil.move(path, folder / "0_CLIPModel" / path.name)
    (tmp_path / "links").mkdir()
    for tower in split(folder, tmp_path / "links").values():
        own = read_config(tower / "0_CLIPModel")
        sentence = read_sentence(tower, own.max_position_embeddings, own.hidden_size)
        assert sentence.normalize
        assert len(sentence.modules) == (1 if own.pixel_features == 0 else 2)


def test_other_models_have_no_towers(tmp_path: Path) -> None:
    edit_json(tmp_path / "config.json", model_type="bert")
    with as_folders(tmp_path) as parts:
        assert parts == {}


def test_errors_name_the_checkpoint(tmp_path: Path) -> None:
    folder = save_towers(clip(), tmp_path / "a")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught, as_folders(folder) as parts:
        load_checkpoint(parts["vision"])
    assert str(folder) in str(caught.value)


TEXTS = ["a photo", "The cat, a photo.", "x"]
PADDED = {"text": {"padding": "max_length", "max_length": 20}}


def picture(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 255, (9, 7, 3), np.uint8)
    return Image.fromarray(values).resize((70, 90), Image.Resampling.BICUBIC)


def vectors_of(folder: Path, batch: Batch | None) -> list[np.ndarray]:
    """Return vectors of a tower: of pictures' batch, or of `TEXTS`, in PyTorch."""
    inside = transformer_folder(folder)
    config = read_config(inside)
    encoder = load_checkpoint(inside, config)
    sentence = read_sentence(folder, config.max_position_embeddings, config.hidden_size)
    if batch is None:
        tokenizer = load_tokenizer(inside, config, lowercase=sentence.lowercase)
        fill_up(tokenizer, with_text_tokens(inside, sentence, tokenizer))
        ids = [model_ids(tokenizer, tokenizer.encode(text)) for text in TEXTS]
        batch = pack([(own, [0] * len(own)) for own in ids])
    tensors = module_tensors(folder, sentence.modules)
    if sentence.pooling == "attention":
        tensors |= pooling_tensors(inside, config)
    own = {name: tensor.numpy() for name, tensor in tensors.items()}
    vectors = TextVectors.with_tensors(sentence, config, own)
    with torch.inference_mode():
        states = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
    each = np.split(states, batch.cu_seqlens[1:-1])
    return vectors.finish([vectors.pool(state, sentence.pooling) for state in each])


def pictures_of(folder: Path, pictures: list[Image.Image]) -> Batch:
    """Return the batch of pictures, opened from PNG files and processed by our own code."""
    values = []
    inside = transformer_folder(folder)
    for own in pictures:
        content = io.BytesIO()
        own.save(content, "PNG")
        opened = open_image(content.getvalue(), ImageLimits(max_pixels=10**6))
        values.append(prepare(opened, read_processing(inside)).values)
    patches = patches_of(read_config(inside))
    return packed_pictures(patches, torch.from_numpy(np.stack(values)))


def assert_equals_sentence_transformers(folder: Path, links: Path) -> None:
    links.mkdir()
    parts = split(folder, links)
    theirs = SentenceTransformer(str(folder), device="cpu")
    pictures = [picture(1), picture(2)]
    found = (
        vectors_of(parts["text"], None),
        vectors_of(parts["vision"], pictures_of(parts["vision"], pictures)),
    )
    for own, inputs in zip(found, (TEXTS, pictures), strict=True):
        expected: Any = theirs.encode(inputs)  # type: ignore[arg-type]
        atol = 2e-5 * np.abs(expected).max()
        np.testing.assert_allclose(np.stack(own), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("legacy", [False, True], ids=["Transformer", "CLIPModel"])
def test_clip(legacy: bool, clip_checkpoint: Path, tmp_path: Path) -> None:
    first: Any = (CLIPModel if legacy else Transformer)(str(clip_checkpoint), max_seq_length=20)
    modules = [first] if legacy else [first, Dense(18, 5), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "a"))
    assert_equals_sentence_transformers(tmp_path / "a", tmp_path / "links")


def test_siglip(siglip_checkpoint: Path, tmp_path: Path) -> None:
    first: Any = Transformer(str(siglip_checkpoint), processing_kwargs=PADDED)
    SentenceTransformer(modules=[first, Normalize()], device="cpu").save(str(tmp_path / "a"))
    assert_equals_sentence_transformers(tmp_path / "a", tmp_path / "links")
