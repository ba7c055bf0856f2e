"""Requests of `POST /encode` with texts and pictures, for a model with two towers."""

from __future__ import annotations

from collections.abc import Sequence

from service.api.native.encode_request import EncodeRequest
from service.api.wire.towers import Shares
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.tokenization.inputs import Picture

_APART = "send texts and pictures in requests of their own"


def part(body: EncodeRequest, indices: Sequence[int]) -> EncodeRequest:
    """Return the request of one tower.

    Prompts, tasks and windows are for the texts alone.

    Args:
        body: request with texts and pictures.
        indices: indices of the tower's inputs.

    Raises:
        Unprocessable: the request has spans or chunks, whose lists are of all inputs.

    """
    for name in ("spans", "chunk"):
        if getattr(body, name) is not None:
            raise Unprocessable(f"{name} is for inputs of one tower: {_APART}")
    inputs = [body.inputs[index] for index in indices]
    update: dict[str, object] = {"inputs": inputs}
    if isinstance(inputs[0], Picture):
        windows = body.overflow == "windows"
        update |= {"prompt_name": None, "task": None}
        update |= {"overflow": None} if windows else {}
    return body.model_copy(update=update)


def common_layers(towers: Shares, options: Sequence[EncodeOptions]) -> dict[str, list[int]]:
    """Return the field `layers` of a reply; empty without `layers` in the request."""
    layers = [list(own.layers) for own in options]
    if len(towers) > 1 and layers[0] != layers[1]:
        raise Unprocessable(
            f"layers {layers[0]} of the {towers[0][0].inference.tower} tower are {layers[1]} of "
            f"the other: use indices from 0, or {_APART}"
        )
    return {"layers": layers[0]} if layers[0] else {}


def check_token_vectors(options: EncodeOptions, towers: Sequence[Inference]) -> None:
    """Raise if the token vectors of two towers do not fit into one tensor."""
    sizes = [tower.config.hidden_size for tower in towers]
    if options.tokens and len(set(sizes)) > 1:
        raise Unprocessable(
            f"token vectors have {sizes[0]} features in the {towers[0].tower} tower and {sizes[1]} "
            f"in the other, which is no tensor: ask for JSON, or {_APART}"
        )
