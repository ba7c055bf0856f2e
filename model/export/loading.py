"""Reading of a checkpoint folder for its export, and loading of its PyTorch modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from model.artifact.sentence import PairTemplate, SentenceConfig
from model.checkpoint import folder_tensors, load_checkpoint
from model.config.encoder import EncoderConfig, patches_of
from model.decoder.decoder import load_decoder
from model.errors import CheckpointError, ConfigError
from model.export.module_tensors import module_tensors
from model.export.samples import PictureSamples, Samples, TextSamples, with_text_tokens
from model.families.registry import read_config
from model.images.processing import ImageProcessing, read_processing
from model.numerics.late_interaction import LateInteraction, QueryExpansion
from model.numerics.task_head import TaskConfig
from model.numerics.vector_modules import Dense, Normalize, tensor_name
from model.pickles import pickled_tensors
from model.runtimes.pytorch import Modules
from model.sources.files import HYBRID_HEADS, listed_modules, transformer_folder
from model.sources.sentence import read_sentence
from model.sources.task_files import (
    Expansion,
    LateFiles,
    LogitScore,
    MessageFormat,
    read_late_files,
    read_logit_score,
    task_kind,
)
from model.tasks.checkpoint import build_task_head, load_task_head
from model.tasks.head import TaskModule
from model.tokenization.chat_template import rendered
from model.tokenization.tokenizer import (
    add_markers,
    check_template,
    load_tokenizer,
    reading_segments,
    special_tokens,
)

_UNUSED = ("cls_token", "eos_token", "pad_token", "unk_token")
"""Special tokens without a weight in sparse vectors."""


def load_hybrid(checkpoint: Path, tokenizer: Tokenizer, encoder: EncoderConfig) -> TaskModule:
    """Load the maps of token vectors and token weights, in float32, evaluation mode.

    Format: FlagEmbedding's `colbert_linear.pt` and `sparse_linear.pt`, pickled state dicts.
    The first token, `<s>`, has no token vector; its state is the dense vector.
    """
    colbert, sparse = (_linear(checkpoint / name) for name in HYBRID_HEADS)
    features = len(colbert["weight"])
    dense = Dense(
        in_features=encoder.hidden_size, out_features=features, bias=True, activation="Identity"
    )
    config = TaskConfig(
        kind="hybrid",
        outputs=features + 1,
        pooling="none",
        late=LateInteraction(modules=(dense, Normalize()), first_token=1),
        unused_ids=_unused_ids(transformer_folder(checkpoint), tokenizer),
    )
    tensors = {f"steps.0.linear.{name}": tensor for name, tensor in colbert.items()}
    tensors |= {f"weight.{name}": tensor for name, tensor in sparse.items()}
    return build_task_head(config, encoder.hidden_size, tensors, str(checkpoint))


def _linear(path: Path) -> dict[str, Tensor]:
    """Return `weight` and `bias` of a Linear."""
    if not path.is_file():
        other = next(name for name in HYBRID_HEADS if name != path.name)
        raise CheckpointError(
            f"{path} is missing, beside {other}: fetch it as well, or move {other} away to serve "
            "the dense vectors alone"
        )
    tensors = pickled_tensors(path)
    if tensors.keys() != {"weight", "bias"} or tensors["weight"].ndim != 2:
        raise CheckpointError(f"{path} does not hold weight and bias of one linear map")
    return tensors


def _unused_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    special = special_tokens(folder)
    ids = {tokenizer.token_to_id(special[name]) for name in _UNUSED if name in special}
    return tuple(sorted(index for index in ids if index is not None))


STANFORD_WEIGHT = "linear.weight"
"""Key of the projection that Stanford's ColBERT stores beside its encoder."""
_HIDES_PADDING = ("deberta-v2",)
"""Model types for which transformers computes nothing for tokens masked as keys."""


def load_token_vectors(
    checkpoint: Path, tokenizer: Tokenizer, encoder: EncoderConfig
) -> TaskModule:
    """Load the token-vector modules of a late-interaction model, in float32, evaluation mode."""
    files = read_late_files(checkpoint)
    late = _with_ids(files, tokenizer, transformer_folder(checkpoint), encoder)
    size = late.vector_size(encoder.hidden_size)
    if size is None:
        raise ConfigError(f"{checkpoint}: the sizes of its modules do not fit one another")
    if late.unseen and encoder.model_type in _HIDES_PADDING:
        raise ConfigError(
            f"{checkpoint}: query expansion without attention to it is not supported for "
            f"{encoder.model_type}"
        )
    if late.expansion and late.expansion.length > encoder.max_position_embeddings:
        raise ConfigError(
            f"{checkpoint}: queries of {late.expansion.length} tokens are longer than the model's "
            f"{encoder.max_position_embeddings} positions"
        )
    config = TaskConfig(kind="late_interaction", outputs=size, pooling="none", late=late)
    tensors = {f"steps.{name}": tensor for name, tensor in _tensors(checkpoint, late).items()}
    return build_task_head(config, encoder.hidden_size, tensors, str(checkpoint))


def _with_ids(
    files: LateFiles, tokenizer: Tokenizer, folder: Path, encoder: EncoderConfig
) -> LateInteraction:
    """Return the settings with words as ids; words that are not one known token are skipped."""
    special = special_tokens(folder)
    unknown = special.get("unk_token")
    unknown_id = None if unknown is None else tokenizer.token_to_id(unknown)
    word_ids = {word: tokenizer.token_to_id(word) for word in files.skipped}
    skipped = {
        index
        for word, index in word_ids.items()
        if index is not None and (index != unknown_id or word == unknown)
    }
    length, expansion = files.query_length, None
    if files.expansion is not None:
        expansion = _expansion(files.expansion, tokenizer, special, folder)
        if length is not None and length < expansion.length:
            raise ConfigError(
                f"{folder}: query_length {length} is less than query_expansion's {expansion.length}"
            )
        length = expansion.length if expansion.fixed else length
    longest = encoder.max_position_embeddings
    return LateInteraction(
        modules=files.modules,
        query_tokens=None if length is None else min(length, longest),
        document_tokens=files.document_length and min(files.document_length, longest),
        expansion=expansion,
        skipped_ids=tuple(sorted(skipped)),
        skipped_in=files.skipped_in,
    )


def _expansion(
    files: Expansion, tokenizer: Tokenizer, special: Mapping[str, str], folder: Path
) -> QueryExpansion:
    """Return the expansion with its named token, else the mask token, else the end token."""
    named = (files.token, special.get("mask_token"), special.get("eos_token"))
    token = next((token for token in named if token is not None), None)
    token_id = None if token is None else tokenizer.token_to_id(token)
    if token_id is None:
        raise ConfigError(
            f"{folder}: query expansion needs a token that the tokenizer has"
            + (f", not {token!r}" if token else "")
        )
    return QueryExpansion(
        token_id=token_id,
        length=files.length,
        fixed=files.strategy == "fixed",
        attended=files.attend,
    )


def _tensors(checkpoint: Path, late: LateInteraction) -> dict[str, Tensor]:
    if listed_modules(checkpoint) is not None:
        return module_tensors(checkpoint, late.modules)
    if tensors := folder_tensors(checkpoint, lambda key: key == STANFORD_WEIGHT):
        return {tensor_name(0, STANFORD_WEIGHT): tensors[STANFORD_WEIGHT]}
    raise CheckpointError(f"{checkpoint} holds no {STANFORD_WEIGHT}, ColBERT's projection")


MOST_CHARACTERS = 2**16
"""Maximum number of characters of a chat template."""
MOST_RENDERED = 2**12
"""Maximum number of characters around a pair, since short pairs are tokenised on the event loop."""
_PROBES = (("⟦query⟧", "⟦document⟧"), (" ⟦q⟧\n&<'\\n ", "\t⟦d⟧ {{ d }}\n\n"))
"""Pairs that show where a template puts both texts, and whether it changes them."""


def pair_templates(
    folder: Path, score: LogitScore, prompts: Mapping[str, str]
) -> dict[str, PairTemplate]:
    """Return the text around a pair for each prompt by its name, and for no prompt by "".

    The chat template is rendered at export. The service then only joins strings.

    As in sentence-transformers, a prompt is the message of the system, and both texts are the
    messages of the roles `query` and `document`.
    """
    if score.chat_template is None:
        return {}
    named = {**prompts, "": ""}
    try:
        _check_source(score.chat_template)
        chats = [
            _chat(score.message_format, prompt, *pair)
            for prompt in named.values()
            for pair in _PROBES
        ]
        texts = iter(rendered(score.chat_template, chats, special_tokens(folder)))
        return {name: _template([next(texts) for _ in _PROBES]) for name in named}
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None


def _check_source(template: str) -> None:
    if "strftime_now" in template:
        raise ConfigError("a chat template with the current time is not supported")
    if len(template) > MOST_CHARACTERS:
        raise ConfigError(
            f"the chat template has {len(template)} characters; at most {MOST_CHARACTERS} are "
            "supported"
        )


def _chat(form: MessageFormat, prompt: str, query: str, document: str) -> list[dict[str, Any]]:
    """Return the messages of a pair after a prompt, which is empty for none."""
    roles = {"system": prompt, "query": query, "document": document}
    return [
        {"role": role, "content": text if form == "flat" else [{"type": "text", "text": text}]}
        for role, text in roles.items()
        if text
    ]


def _template(texts: Sequence[str]) -> PairTemplate:
    """Return the text around a pair, by the texts of both probes."""
    found = []
    for text, (query, document) in zip(texts, _PROBES, strict=True):
        parts = text.split(query)
        ends = parts[-1].split(document)
        if len(parts) != 2 or len(ends) != 2 or not ends[0] or document in parts[0]:
            raise ConfigError(
                "the chat template does not contain the query and then the document once and "
                "unchanged, as messages of the roles query and document"
            )
        found.append(PairTemplate(before=parts[0], between=ends[0], after=ends[1]))
    around = len(found[0].filled("", ""))
    if found[0] != found[1] or around > MOST_RENDERED:
        raise ConfigError(
            f"the chat template puts {around} characters around a pair, which depend on it or are "
            f"more than {MOST_RENDERED}"
        )
    return found[0]


@dataclass(frozen=True)
class Source:
    """Descriptions of a checkpoint, and its tokenizer."""

    inside: Path
    """Folder of the encoder's files."""
    config: EncoderConfig
    sentence: SentenceConfig
    tokenizer: Tokenizer | None
    """Tokenizer of texts; None for pictures."""
    images: ImageProcessing | None
    """Processing of pictures; None for texts."""

    @property
    def samples(self) -> Samples:
        """Inputs of the encoder for its export."""
        if self.images is not None:
            return PictureSamples(patches_of(self.config), self.images)
        assert self.tokenizer is not None  # noqa: S101  # for texts
        return TextSamples(self.tokenizer, self.config, self.sentence)


def read_source(checkpoint: Path) -> Source:
    """Read everything of a checkpoint but its weights."""
    inside = transformer_folder(checkpoint)
    config = read_config(inside)
    images = read_processing(inside) if config.embeddings.patches else None
    if images is None:
        config = reading_segments(config, inside)
    sentence = read_sentence(checkpoint, config.max_position_embeddings, config.hidden_size)
    if images is not None:
        return Source(inside, config, sentence, None, images)
    if score := read_logit_score(checkpoint):
        templates = pair_templates(inside, score, sentence.prompts)
        sentence = sentence.model_copy(update={"pair_templates": templates})
    tokenizer = load_tokenizer(inside, config, lowercase=sentence.lowercase)
    check_template(inside, tokenizer, config, sentence.max_length)
    sentence = with_text_tokens(inside, sentence, tokenizer)
    return Source(inside, config, sentence, tokenizer, None)


def load_modules(
    checkpoint: Path, tokenizer: Tokenizer | None, config: EncoderConfig | None = None
) -> Modules:
    """Return the encoder, the task head and the decoder of a checkpoint.

    The tokenizer gets the markers of queries and documents as single tokens.
    """
    inside = transformer_folder(checkpoint)
    kind = task_kind(checkpoint)
    if tokenizer is None or kind not in ("hybrid", "late_interaction"):
        encoder = load_checkpoint(inside, config)
        head = load_task_head(checkpoint, encoder)
        return Modules(encoder, head, load_decoder(inside, encoder.config))
    if kind == "hybrid":
        encoder = load_checkpoint(inside, config)
        return Modules(encoder, load_hybrid(checkpoint, tokenizer, encoder.config), None)
    add_markers(tokenizer, read_late_files(checkpoint).markers)
    apart = [STANFORD_WEIGHT] if listed_modules(checkpoint) is None else []
    encoder = load_checkpoint(inside, config, apart)
    return Modules(encoder, load_token_vectors(checkpoint, tokenizer, encoder.config), None)
