"""Steps of a call: requests for parts of its inputs, one deadline for all."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

from headscope import service_calls
from headscope.call import Call, CallFor
from headscope.errors import HeadscopeError, InvalidReply, Refused
from headscope.isolation import pieces_of
from headscope.reading import NOT_OURS
from headscope.sending import Request, Session, answered
from headscope.service_results import Info
from headscope.wire import Answer, Step, Together, refusal

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
            info_call = service_calls.info(call.model)
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
