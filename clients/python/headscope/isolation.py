"""Inputs that are refused, apart from those that are asked for together with them.

A reply that is too large is asked for in halves. With `on_error="return"` a refused input becomes
its error, and the others of its request are asked for again: at once where the service names the
input, as it does in `inputs[3] has 302 tokens`, and else by halves.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from headscope.call import Call
from headscope.errors import HeadscopeError, Refused

Failure = TypeVar("Failure", bound=HeadscopeError)
OF_INPUTS = (400, 413, 422)
"""Statuses of refusals that may be about one input; others are about the whole service."""
TOO_LARGE = 413


def pieces_of(error: HeadscopeError, call: Call[Any, Any], part: range) -> list[range | Refused]:
    """Return what to ask for instead of a refused request, and errors of single inputs, in order.

    Raises:
        HeadscopeError: the error, whose `inputs` and `index` say what it is about.

    """
    index = index_of(error, call, part)
    if call.whole:
        raise placed(error, call, part, index)
    returned = call.on_error == "return" and is_about_inputs(error, call, index)
    if len(part) > 1 and index is None and (returned or error.status == TOO_LARGE):
        return halves(part)
    if not (returned and isinstance(error, Refused)):
        raise placed(error, call, part, index)
    own = part.start if index is None else index
    before, after = range(part.start, own), range(own + 1, part.stop)
    # where the first input is refused others may be too: a part is not sent whole for each of them
    rest = [after] if before else halves(after)
    return [piece for piece in (before, placed(error, call, part, own), *rest) if piece]


def halves(part: range) -> list[range | Refused]:
    """Return both halves of some inputs; the first is empty where there is one input."""
    middle = part.start + len(part) // 2
    return [range(part.start, middle), range(middle, part.stop)]


def is_about_inputs(error: HeadscopeError, call: Call[Any, Any], index: int | None) -> bool:
    """Return whether a refusal may be about one input, and not about a field or the service.

    A refusal that names no input, and that names a field of the request, is about the field.
    """
    if error.status not in OF_INPUTS:
        return False
    if index is not None or error.status == TOO_LARGE:
        return True
    return not any(re.search(rf"\b{re.escape(name)}\b", error.detail) for name in call.body or ())


def index_of(error: HeadscopeError, call: Call[Any, Any], part: range) -> int | None:
    """Return the index of the input that a refusal names, in the caller's list."""
    found = names_of(call).search(error.detail)
    index = part.start + int(found[2]) if found else -1
    return index if index in part else None


def names_of(call: Call[Any, Any]) -> re.Pattern[str]:
    """Return the pattern of an input in a message: the field, and its index in the request."""
    names = {call.name, "inputs"} | ({call.targets_name} if call.targets else set())
    return re.compile(rf"\b({'|'.join(sorted(names))})\[(\d+)\]")


def placed(error: Failure, call: Call[Any, Any], part: range, index: int | None) -> Failure:
    """Set what an error is about, by indices of the caller's list also in its message.

    Args:
        error: the error of a request.
        call: the call that the request is part of.
        part: the inputs of the request.
        index: the one of them that was refused, if it is known.

    """
    if not part:
        return error
    error.inputs, error.index = part, index
    if len(part) < len(call.inputs):
        first, last, every = part.start, part.stop - 1, len(call.inputs)
        message = names_of(call).sub(
            lambda found: f"{found[1]}[{int(found[2]) + first}]", str(error)
        )
        which = f"{call.name}[{first}]" if first == last else f"{call.name}[{first}] to [{last}]"
        error.args = (f"{message} ({which} of {every})",)
    return error
