"""Isolation of refused inputs from the other inputs of their requests.

If a reply is too large, the client requests both halves of the inputs. With `on_error="return"` a
refused input is replaced by its error, and the other inputs of its request are sent again: at once
if the service names the input, as in `inputs[3] has 302 tokens`, and in halves otherwise.
"""

from __future__ import annotations

import re
from typing import TypeVar

from headscope.call import CallFor
from headscope.errors import HeadscopeError, Refused

Failure = TypeVar("Failure", bound=HeadscopeError)
OF_INPUTS = (400, 413, 422)
"""Statuses of refusals that may be about one input; all others are about the whole service."""
TOO_LARGE = 413


def pieces_of(error: HeadscopeError, call: CallFor[object], part: range) -> list[range | Refused]:
    """Return the replacements of a refused request, and errors of single inputs, in order.

    Raises:
        HeadscopeError: the error, with the refused inputs in `inputs` and `index`.

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
    # the inputs after a refused first one may be refused too, so they are sent in halves
    remaining = [after] if before else halves(after)
    return [piece for piece in (before, placed(error, call, part, own), *remaining) if piece]


def halves(part: range) -> list[range | Refused]:
    """Return both halves of some inputs; the first is empty for a single input."""
    middle = part.start + len(part) // 2
    return [range(part.start, middle), range(middle, part.stop)]


def is_about_inputs(error: HeadscopeError, call: CallFor[object], index: int | None) -> bool:
    """Return whether a refusal may be about one input, rather than a field or the service.

    A refusal that names a field of the request, but no input, is about the field.
    """
    if error.status not in OF_INPUTS:
        return False
    if index is not None or error.status == TOO_LARGE:
        return True
    return not any(re.search(rf"\b{re.escape(name)}\b", error.detail) for name in call.body or ())


def index_of(error: HeadscopeError, call: CallFor[object], part: range) -> int | None:
    """Return the index in the caller's list of the input that a refusal names; None without one."""
    match = names_of(call).search(error.detail)
    index = part.start + int(match[2]) if match else -1
    return index if index in part else None


def names_of(call: CallFor[object]) -> re.Pattern[str]:
    """Return a pattern for an input in a message: its field, and its index in the request."""
    names = {call.name, "inputs"} | ({call.targets_name} if call.targets else set())
    return re.compile(rf"\b({'|'.join(sorted(names))})\[(\d+)\]")


def placed(error: Failure, call: CallFor[object], part: range, index: int | None) -> Failure:
    """Set the inputs that an error is about, and shift indices in its message to the caller's list.

    Args:
        error: the error of a request.
        call: the call that the request is part of.
        part: the inputs of the request.
        index: index of the refused input, if it is known.

    """
    if not part:
        return error
    error.inputs, error.index = part, index
    if len(part) < len(call.inputs):
        first, last, total = part.start, part.stop - 1, len(call.inputs)
        message = names_of(call).sub(
            lambda match: f"{match[1]}[{int(match[2]) + first}]", str(error)
        )
        which = f"{call.name}[{first}]" if first == last else f"{call.name}[{first}] to [{last}]"
        error.args = (f"{message} ({which} of {total})",)
    return error
