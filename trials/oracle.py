"""What a stub must answer: texts, their tokens, and the vectors that follow from them alone."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.pooling import l2_normalize
from service.artifacts.opening import open_artifact
from service.engines.contract import Floats, Pooling, TextTask
from service.engines.fake import FakeEngine
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer, TokenizedText
from service.settings import Settings

_COMMON = (
    "a the of to and in is it you that he was for on are with as his they be at one have "
    "this from or had by hot word but what some we can out other were all there when up "
    "use your how said an each she which do their time if will way about many then them "
    "write would like so these her long make thing see him two has look more day could go "
    "come did number sound no most people my over know water than call first who may down "
    "side been now find any new work part take get place made live where after back "
    "little only round man year came show every good me give our under name very"
)
WORDS = _COMMON.split()


@functools.cache
def artifact() -> Artifact:
    """What stubs serve."""
    return open_artifact(Settings())


def sized(artifact: Artifact, name: str, hidden_size: int) -> Artifact:
    """The same files as another model's, with vectors of another size."""
    manifest = artifact.manifest
    config = manifest.config.model_copy(update={"hidden_size": hidden_size})
    changed = manifest.model_copy(update={"model": name, "config": config})
    return dataclasses.replace(artifact, manifest=changed)


@functools.cache
def tokenizer() -> TextTokenizer:
    """The service's, without its limits."""
    opened = artifact()
    return TextTokenizer(opened.path(TOKENIZER), opened.manifest.sentence, Limits(512, 10**6))


@functools.cache
def engine() -> FakeEngine:
    """Knows what a stub's engine answers."""
    return FakeEngine(artifact().manifest.config)


@functools.cache
def tokens_of(text: str) -> TokenizedText:
    """A text as the service sees it."""
    (found,) = tokenizer().tokenize([text], Options())
    return found


def token_id(word: str) -> int:
    """The id of a word that is one token."""
    _, found, _ = tokens_of(word).input_ids.tolist()
    return int(found)


def words(generator: random.Random, count: int) -> str:
    """A text of so many tokens, special ones left out."""
    return " ".join(generator.choices(WORDS, k=count))


@functools.lru_cache(100_000)
def pooled(text: str, layer: int, mode: Any, dimensions: int, *, normalize: bool) -> Floats:
    """The vector that `POST /encode` must give of a text, from a stub."""
    seen = tokens_of(text)
    task = TextTask(seen.input_ids, seen.segment_ids, pooling=Pooling(layer, mode))
    vector = engine().expected(task).pooled
    assert vector is not None
    cut = vector[:dimensions]
    return l2_normalize(cut) if normalize else cut


@functools.lru_cache(100_000)
def hidden(text: str, layer: int) -> Floats:
    """The token vectors `[S, H]` that `POST /encode` must give of a text, from a stub."""
    seen = tokens_of(text)
    (found,) = engine().expected(TextTask(seen.input_ids, seen.segment_ids, (layer,))).hidden
    return found
