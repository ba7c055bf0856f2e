"""Expected replies of a stub: texts, their tokens, and the vectors that follow from the tokens."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

from model.artifact.manifest import TOKENIZER, Artifact
from model.numerics.pooling import l2_normalize
from service.artifacts.opening import open_artifact
from service.engines.contract import Floats, Pooling, TextTask
from service.engines.fake import FakeEngine
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
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
    """Return the artifact that stubs serve."""
    return open_artifact(Settings())


def sized(artifact: Artifact, name: str, hidden_size: int) -> Artifact:
    """Return the artifact under another model's name, with another size of vectors."""
    manifest = artifact.manifest
    config = manifest.config.model_copy(update={"hidden_size": hidden_size})
    changed = manifest.model_copy(update={"model": name, "config": config})
    return dataclasses.replace(artifact, manifest=changed)


@functools.cache
def tokenizer() -> TextTokenizer:
    """Return the service's tokenizer, without its limits."""
    opened = artifact()
    return TextTokenizer(opened.path(TOKENIZER), opened.manifest.sentence, Limits(512, 10**6))


@functools.cache
def engine(hidden_size: int) -> FakeEngine:
    """Return an engine that computes the same vectors as the engine of a stub of that size."""
    return FakeEngine(sized(artifact(), "", hidden_size).manifest.config)


@functools.cache
def tokens_of(text: str) -> Text:
    """Tokenise a text as the service does."""
    (tokenized,) = tokenizer().tokenize([text], Options())
    return tokenized


def token_id(word: str) -> int:
    """Return the id of a word that is one token."""
    _, token, _ = tokens_of(word).input_ids.tolist()
    return int(token)


def words(generator: random.Random, count: int) -> str:
    """Return a random text of `count` tokens without the special tokens."""
    return " ".join(generator.choices(WORDS, k=count))


@functools.lru_cache(100_000)
def pooled(
    text: str, layer: int, mode: Any, dimensions: int, *, normalize: bool, hidden_size: int = 384
) -> Floats:
    """Return the vector with which a stub must answer `POST /encode` of a text."""
    seen = tokens_of(text)
    task = TextTask(seen.input_ids, seen.segment_ids, pooling=Pooling(layer, mode))
    vector = engine(hidden_size).expected(task).pooled
    assert vector is not None
    cut = vector[:dimensions]
    return l2_normalize(cut) if normalize else cut


@functools.lru_cache(100_000)
def hidden(text: str, layer: int, hidden_size: int) -> Floats:
    """Return the token vectors `[S, H]` with which a stub must answer `POST /encode` of a text."""
    seen = tokens_of(text)
    task = TextTask(seen.input_ids, seen.segment_ids, (layer,))
    (states,) = engine(hidden_size).expected(task).hidden
    return states
