"""Steps of a call: requests for parts of its inputs, one deadline for all.

If a reply is too large, the client requests both halves of the inputs. With `on_error="return"` a
refused input is replaced by its error, and the other inputs of its request are sent again: at once
if the service names the input, as in `inputs[3] has 302 tokens`, and in halves otherwise.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

from headscope import calls
from headscope.call import Call, CallFor
from headscope.errors import HeadscopeError, InvalidReply, Refused
from headscope.reading import NOT_OURS
from headscope.sending import Request, Session, answered
from headscope.service_results import Info
from headscope.wire import Answer, Step, Together, refusal

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


REQUEST_CHARACTERS = 2**18
PICTURE_CHARACTERS = 2**22
"""Characters of pictures in base64; a larger picture gets a request of its own."""
REPLY_BYTES = 2**25
QUEUE_SHARE = 8
"""Divisor of the queue's size for one request, which leaves room for other clients."""
BYTES_PER_TOKEN = 3
"""Bytes per token in UTF-8, for short words and ideographs; an overestimate of tokens in most
languages."""
P = TypeVar("P")
T = TypeVar("T")


def conduct(call: CallFor[T], session: Session) -> Generator[Step, Any, T]:
    """Yield the steps of a whole call; return its result.

    Raises:
        HeadscopeError: a request has no result; the error's `inputs` tells which.

    """
    deadline = session.deadline
    if call.body is None:
        replies = yield from exchange(call, range(0), session, deadline, set())
        return call.join(replies)
    parts = [range(len(call.inputs))] if call.inputs else []
    fingerprints: set[str] = set()
    if len(call.inputs) > 1 and not call.whole:
        info = session.infos.get(call.model)
        if info is None:
            info_call = calls.info(call.model)
            infos = yield from exchange(info_call, range(0), session, deadline, set())
            info = session.infos[call.model] = infos[0]
        parts = list(ranges_of(call, info))
    groups = yield Together(
        [exchange(call, part, session, deadline, fingerprints) for part in parts]
    )
    return call.join([reply for replies in groups for reply in replies])


def _tokens_of(texts: Sequence[str], info: Info) -> int:
    """Estimate the number of tokens of an input, at most the model's maximum."""
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return min(size // BYTES_PER_TOKEN + 2, info.max_input_length)


def ranges_of(call: CallFor[object], info: Info) -> Iterator[range]:
    """Yield the inputs of each request, in order; a large input gets a request of its own.

    A request is limited by the limits that the service reports, and so that several requests fit
    into its queue and its memory at once. If an estimate was too high, the service answers 413 and
    the request is split in half.
    """
    bounds = (
        info.max_client_batch_size,
        REQUEST_CHARACTERS,
        PICTURE_CHARACTERS,
        max(1, info.max_queue_tokens // QUEUE_SHARE),
        REPLY_BYTES,
    )
    start, total = 0, [0] * len(bounds)
    for i in range(len(call.inputs)):
        texts, pictures = call.texts(i), call.pictures(i)
        tokens = info.picture_tokens * len(pictures)
        if texts or not pictures:
            tokens += _tokens_of(texts, info)
        of_pictures = sum(picture.characters for picture in pictures)
        size = (1, sum(map(len, texts)), of_pictures, tokens, call.weigh(tokens, info))
        total = [a + b for a, b in zip(total, size, strict=True)]
        if i > start and any(a > bound for a, bound in zip(total, bounds, strict=True)):
            yield range(start, i)
            start, total = i, list(size)
    yield range(start, len(call.inputs))


def exchange(
    call: Call[P, Any], part: range, session: Session, deadline: float, fingerprints: set[str]
) -> Generator[Step, Any, list[P]]:
    """Yield the steps for some inputs, split into several requests after a refusal.

    Args:
        call: the call.
        part: indices of the inputs.
        session: session of the client.
        deadline: deadline of the call, by the session's clock.
        fingerprints: fingerprints of the models that answered the call's requests so far.

    Returns:
        The replies in the order of the inputs. An input whose error is returned has a list with
        that error as its reply.

    """
    replies: list[Any] = []
    pending: deque[range | Refused] = deque([part])
    while pending:
        piece = pending.popleft()
        if isinstance(piece, Refused):
            replies.append([piece])
            continue
        try:
            body = None if call.body is None else call.written(piece) | dict(call.body)
            request = Request.of(call.path, body, call.accept)
            answer = yield from answered(request, session, deadline)
            if answer.status != 200:
                raise refusal(answer, session.url + call.path)
            replies.append(read(call, piece, answer, session, fingerprints))
        except HeadscopeError as error:
            pending.extendleft(reversed(pieces_of(error, call, piece)))
    return replies


def read(
    call: Call[P, Any], part: range, answer: Answer, session: Session, fingerprints: set[str]
) -> P:
    """Parse a reply with status 200, and add its model's fingerprint to `fingerprints`.

    Raises:
        InvalidReply: the reply does not have this service's format, or comes from another model
            than previous ones.

    """
    try:
        session.warnings.note(answer.headers)
        session.fingerprint = answer.headers.get("x-model-fingerprint")
        result = call.read_part(answer.content, part)
    except NOT_OURS as error:
        address = session.url + call.path
        raise InvalidReply(
            f"the answer of {address} is not from this service",
            answer.status,
            request_id=answer.headers.get("x-request-id"),
        ) from error
    _check_expected(call, answer, session)
    fingerprints |= {session.fingerprint} if session.fingerprint else set()
    if len(fingerprints) > 1:
        raise InvalidReply(
            f"several models answered one call (fingerprints {', '.join(sorted(fingerprints))}): "
            "the service was changed during the call, or its replicas differ; call again",
            answer.status,
            request_id=answer.headers.get("x-request-id"),
        )
    return result


def _check_expected(call: Call[P, Any], answer: Answer, session: Session) -> None:
    """Raise if a model of another fingerprint than the expected one has answered.

    Services of before `x-expect-fingerprint` ignore that header.

    Raises:
        InvalidReply: the message names both fingerprints.

    """
    expected = session.expect_fingerprint
    if call.body is None or expected in (None, session.fingerprint):
        return
    raise InvalidReply(
        f"{session.url} answered with the model {session.fingerprint or 'without a fingerprint'}, "
        f"and expect_fingerprint is {expected}",
        answer.status,
        request_id=answer.headers.get("x-request-id"),
    )
