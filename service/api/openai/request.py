"""Request of `POST /v1/embeddings`, with the fields of OpenAI, Jina and vLLM.

The clients of all three call this path. Fields that change vectors are honoured or rejected;
`service.api.wire.effective_fields` lists the rejected fields.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from model.numerics.quantization import FEATURES_PER_BYTE
from service.api.cohere.quantization import FORMS, VectorForm
from service.api.drop_in.embedding import check_embedder
from service.api.drop_in.prompts import prompt_for
from service.api.openai.inputs import EmbeddingInputs
from service.api.vllm.messages import MessagesRequest
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options


class EmbeddingsRequest(MessagesRequest):
    """Request body of `POST /v1/embeddings`."""

    input: EmbeddingInputs = Field(
        description="A text, token ids as `--token-ids` allows, a picture as Jina writes it, or a "
        "list of them.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, one string for each vector."
    )
    dimensions: int | None = Field(
        None, description="Keep the first n, then normalise; all by default."
    )
    user: str | None = Field(None, description="Ignored.")
    task: str | None = Field(
        None,
        description="Jina's field: selects a prompt of the checkpoint, if it has prompts.",
    )
    embedding_type: Literal["float", "base64", "binary", "ubinary"] | None = Field(
        None, description="Jina's field: type of the numbers, in place of `encoding_format`."
    )
    normalized: bool = Field(True, description="Jina's field: return unit vectors.")
    truncate: bool = Field(False, description="Jina's field: truncate long texts.")
    late_chunking: bool = Field(
        False,
        description="Jina's field: encode all inputs as one text, and pool the tokens of each.",
    )

    def check_model(self, inference: Inference) -> None:
        """Check that the model embeds texts."""
        check_embedder(inference)

    def check_late_chunking(self) -> None:
        """Check that no field cuts the text of all inputs after its spans are found."""
        if self.late_chunking and self.truncate_prompt_tokens is not None:
            raise Unprocessable("late_chunking: leave out `truncate_prompt_tokens`, vLLM's field")

    @property
    def unit(self) -> bool:
        """Whether to return unit vectors."""
        return self.normalized and self.use_activation is not False

    @property
    def vector_form(self) -> VectorForm:
        """Conversion and serialisation of each vector."""
        kind, as_base64 = self.embedding_type, self.encoding_format == "base64"
        if kind in ("binary", "ubinary"):
            if as_base64:
                raise Unprocessable(f"embedding_type: {kind} is not given in base64: leave out one")
            return FORMS[kind]
        return FORMS["base64" if as_base64 or kind == "base64" else "float"]

    def tokenizing(self, inference: Inference) -> Options:
        """Return the tokenisation options that apply before `truncate_prompt_tokens`."""
        options = self.options("input[{}]", prompt_for(inference, self.task, "task"))
        truncate = options.truncate or self.truncate
        return replace(options, truncate=truncate, ids_as_given=True)

    def features(self, size: int) -> int | None:
        """Return the number of leading features to keep; None for the checkpoint's own number."""
        kept, in_bits = self.dimensions, self.embedding_type in ("binary", "ubinary")
        if in_bits and (size if kept is None else kept) % FEATURES_PER_BYTE:
            raise Unprocessable("dimensions: binary vectors need a multiple of 8")
        return kept
