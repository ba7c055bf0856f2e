"""Fields that change replies in some dialect, and are rejected on routes without the field.

Routes of other services' dialects ignore unknown fields, as those services do. Fields of this list
are the exception: a client that sends one expects other vectors, scores or ranks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

HARMLESS: Mapping[str, tuple[object, ...]] = {
    "activation": (True,),
    "add_special_tokens": (True,),
    "chat_template": (),
    "chat_template_kwargs": (),
    "chunk": (),
    "dimensions": (),
    "embed_dtype": ("float32",),
    "embedding_type": ("float",),
    "embedding_types": (["float"],),
    "encoding_format": ("float",),
    "endianness": ("native", "little"),
    "images": ([],),
    "input_type": (),
    "instruction": (),
    "late_chunking": (False,),
    "layer": (),
    "max_chunks_per_doc": (1,),
    "max_tokens": (),
    "max_tokens_per_doc": (),
    "max_tokens_per_query": (),
    "messages": (),
    "mm_processor_kwargs": (),
    "modality": ("text",),
    "normalize": (),
    "normalized": (True,),
    "output_dimension": (),
    "output_dtype": ("float",),
    "overflow": (),
    "pooling": (),
    "prompt": (),
    "prompt_name": (),
    "rank_fields": (["text"],),
    "raw_scores": (False,),
    "return_embeddings": (False,),
    "return_multivector": (False,),
    "softmax": (True,),
    "spans": (),
    "task": (),
    "top_k": (),
    "truncate": (True, "END"),
    "truncate_prompt_tokens": (),
    "truncation": (),
    "truncation_direction": ("right", "Right"),
    "truncation_side": ("right",),
    "use_activation": (True,),
    "vector_type": ("float32",),
}
"""Field → values that are accepted on routes without the field, as they do not change replies."""


def refused_field(fields: Mapping[str, object], known: Container[str]) -> str | None:
    """Return the first field of a request that the route lacks and may not ignore; None if none."""
    for name, value in fields.items():
        if name in known or value is None or name not in HARMLESS:
            continue
        if not any(type(value) is type(item) and value == item for item in HARMLESS[name]):
            return name
    return None


def refusal(name: str) -> str:
    """Describe why a field is rejected, and which values would be accepted."""
    values = " or ".join(repr(value) for value in HARMLESS[name])
    accepted = f", or send {values}" if values else ""
    return f"it would change the reply, and this route does not have it: leave it out{accepted}"
