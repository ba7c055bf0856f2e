"""Call of a client as data, and its requests for parts of the inputs, one deadline for all.

If a reply is too large, the client requests both halves of the inputs. With `on_error="return"` a
refused input is replaced by its error, and the other inputs of its request are sent again: at once
if the service names the input, as in `inputs[3] has 302 tokens`, and in halves otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlencode

from headscope.errors import HeadscopeError, InvalidReply, Refused
from headscope.inputs import Item, Picture
from headscope.reading import NOT_OURS, binary, read_info
from headscope.results import Info
from headscope.sending import JSON, Answer, Session, refusal

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Raises = Literal["raise"]
Returns = Literal["return"]
OnError = Raises | Returns
"""Handling of a refused input: raise its error, or return the error in the input's place."""
BINARY = "application/vnd.safetensors"
FLOAT_BYTES, JSON_FLOAT_BYTES, JSON_TOKEN_BYTES, JSON_SCORE_BYTES = 4, 15, 96, 64
"""Estimated sizes in replies: a number in both forms, a token with its data, and a score."""
OF_INPUTS = (400, 413, 422)
"""Statuses of refusals that may be about one input; all others are about the whole service."""
TOO_LARGE = 413
REQUEST_CHARACTERS = 2**18
PICTURE_CHARACTERS = 2**22
"""Characters of pictures in base64; a larger picture gets a request of its own."""
REPLY_BYTES = 2**25
QUEUE_SHARE = 8
"""Divisor of the queue's size for one request, which leaves room for other clients."""
BYTES_PER_TOKEN = 3
"""Bytes per token in UTF-8, for short words and ideographs; an overestimate of tokens in most
languages."""


def only(parts: Sequence[T]) -> T:
    """Return the part of the only request."""
    (part,) = parts
    return part


def chained(parts: Iterable[Sequence[T]]) -> list[T]:
    """Concatenate lists."""
    return list(itertools.chain.from_iterable(parts))


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """Call whose inputs are divided among requests; the replies are joined to a `T_co`."""

    path: str
    inputs: Sequence[Item]
    """Inputs; empty for a GET."""
    body: Mapping[str, object] | None
    """Body without the inputs; None for a GET."""
    read: Callable[[Any, Sequence[Any]], Any]
    """Reader of a reply with status 200, given its JSON, or its tensors and metadata, and the
    inputs of the request. Each input is a tuple with its target if there are targets."""
    join: Callable[[Sequence[Any]], T_co]
    """Function that joins what was read, in order; it gets none without inputs."""
    accept: str = JSON
    name: str = "inputs"
    """Name of the inputs in the body."""
    shared: str = ""
    """Text that is combined with each input."""
    targets: Sequence[str] = ()
    """Targets, one per input, sent beside the inputs; or none."""
    targets_name: str = "targets"
    """Name of the targets in the body."""
    weigh: Callable[[int, Info], int] = lambda tokens, _: FLOAT_BYTES * tokens
    """Estimate of a reply's bytes, given an input's tokens and the service's information."""
    on_error: OnError = "raise"
    whole: bool = False
    """Whether all inputs must be in one request, because they refer to each other."""

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "return"):
            raise ValueError(f'on_error is {self.on_error!r}: use "raise" or "return"')

    def written(self, part: range) -> dict[str, object]:
        """Return the inputs of a request as fields of the body."""
        fields: dict[str, object] = {self.name: [_element(self.inputs[i]) for i in part]}
        if self.targets:
            fields[self.targets_name] = [self.targets[i] for i in part]
        return fields

    def read_part(self, content: bytes, part: range) -> Any:
        """Read a reply; content in another format raises one of `headscope.reading.NOT_OURS`."""
        reply = json.loads(content) if self.accept == JSON else binary(content)
        if self.targets:
            return self.read(reply, [(self.inputs[i], self.targets[i]) for i in part])
        return self.read(reply, [self.inputs[i] for i in part])

    def size(self, index: int, info: Info) -> tuple[int, int, int, int, int]:
        """Return the size of an input, as `ranges_of` bounds it."""
        item = self.inputs[index]
        sides = [item] if isinstance(item, str | Picture) else item
        pictures = [side.characters for side in sides if isinstance(side, Picture)]
        texts = [side for side in sides if isinstance(side, str)]
        if texts:
            texts += [self.shared, *self.targets[index : index + 1]]
        tokens = info.picture_tokens * len(pictures)
        if texts or not pictures:
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
            tokens += min(size // BYTES_PER_TOKEN + 2, info.max_input_length)
        return 1, sum(map(len, texts)), sum(pictures), tokens, self.weigh(tokens, info)

    def index_of(self, error: HeadscopeError, part: range) -> int | None:
        """Return the index in the caller's list of the input that a refusal names, if any."""
        match = self._names.search(error.detail)
        index = part.start + int(match[2]) if match else -1
        return index if index in part else None

    def placed(self, error: HeadscopeError, part: range, index: int | None) -> HeadscopeError:
        """Set the inputs that an error is about, and shift indices in it to the caller's list."""
        if not part:
            return error
        error.inputs, error.index = part, index
        if len(part) < len(self.inputs):
            first, last, total = part.start, part.stop - 1, len(self.inputs)
            message = self._names.sub(
                lambda match: f"{match[1]}[{int(match[2]) + first}]", str(error)
            )
            which = f"{self.name}[{first}]" + (f" to [{last}]" if first < last else "")
            error.args = (f"{message} ({which} of {total})",)
        return error

    @property
    def _names(self) -> re.Pattern[str]:
        """Pattern for an input in a message: its field, and its index in the request."""
        names = {self.name, "inputs"} | ({self.targets_name} if self.targets else set())
        return re.compile(rf"\b({'|'.join(sorted(names))})\[(\d+)\]")


def _element(item: Item) -> object:
    """Return an input as JSON."""
    if isinstance(item, Picture):
        return item.element
    return item if isinstance(item, str) else [_element(side) for side in item]


def info(model: str | None = None) -> Call[Info]:
    """Return information about a model and its limits: the first model, or the named one."""
    query = "" if model is None else "?" + urlencode({"model": model})
    return Call(f"/info{query}", (), None, read_info, only)


async def conduct(call: Call[T], session: Session, deadline: float | None = None) -> T:
    """Send the requests of a call, and return its result."""
    deadline = session.clock() + session.timeout if deadline is None else deadline
    parts = [range(len(call.inputs))] if call.inputs or call.body is None else []
    if len(call.inputs) > 1 and not call.whole:
        model = (call.body or {}).get("model")
        name = None if model is None else str(model)
        if name not in session.infos:
            session.infos[name] = await conduct(info(name), session, deadline)
        parts = list(ranges_of(call, session.infos[name]))
    fingerprints: set[str] = set()

    async def of_part(part: range) -> list[Any]:
        return await exchange(call, part, session, deadline, fingerprints)

    return call.join(chained(await session._map(of_part, parts)))


def ranges_of(call: Call[object], info: Info) -> Iterator[range]:
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
        size = call.size(i, info)
        total = [a + b for a, b in zip(total, size, strict=True)]
        if i > start and any(a > bound for a, bound in zip(total, bounds, strict=True)):
            yield range(start, i)
            start, total = i, list(size)
    yield range(start, len(call.inputs))


async def exchange(
    call: Call[object], part: range, session: Session, deadline: float, fingerprints: set[str]
) -> list[Any]:
    """Send some inputs, in several requests after a refusal.

    The result is what was read of each reply, in the order of the inputs. An input whose error is
    returned has a list with that error.
    """
    replies: list[Any] = []
    pending: deque[range | HeadscopeError] = deque([part])
    while pending:
        piece = pending.popleft()
        if isinstance(piece, HeadscopeError):
            replies.append([piece])
            continue
        try:
            body = None if call.body is None else call.written(piece) | dict(call.body)
            answer = await session._answer(call.path, body, call.accept, deadline)
            if answer.status != 200:
                raise refusal(answer, session.url + call.path)
            replies.append(_read(call, piece, answer, session, fingerprints))
        except HeadscopeError as error:
            pending.extendleft(reversed(_pieces_of(error, call, piece)))
    return replies


def _read(
    call: Call[object], part: range, answer: Answer, session: Session, fingerprints: set[str]
) -> Any:
    """Read a reply with status 200, and add its model's fingerprint to `fingerprints`.

    An InvalidReply is raised for another format, and for another model than of the call's previous
    replies, or than expected: services of before `x-expect-fingerprint` ignore that header.
    """

    def invalid(message: str) -> InvalidReply:
        return InvalidReply(message, answer.status, request_id=answer.headers.get("x-request-id"))

    expected = session.expect_fingerprint
    try:
        session.warnings.note(answer.headers)
        session.fingerprint = fingerprint = answer.headers.get("x-model-fingerprint")
        result = call.read_part(answer.content, part)
    except NOT_OURS as error:
        raise invalid(f"the answer of {session.url}{call.path} is not from this service") from error
    if call.body is not None and expected not in (None, fingerprint):
        raise invalid(
            f"{session.url} answered with the model {fingerprint or 'without a fingerprint'}, "
            f"and expect_fingerprint is {expected}"
        )
    fingerprints |= {fingerprint} if fingerprint else set()
    if len(fingerprints) > 1:
        raise invalid(
            f"several models answered one call (fingerprints {', '.join(sorted(fingerprints))}): "
            "the service was changed during the call, or its replicas differ; call again"
        )
    return result


def _pieces_of(
    error: HeadscopeError, call: Call[object], part: range
) -> Sequence[range | HeadscopeError]:
    """Return the replacements of a refused request, and errors of single inputs, in order.

    An error that is not replaced is raised, with the refused inputs in `inputs` and `index`.
    """
    index, too_large = call.index_of(error, part), error.status == TOO_LARGE
    returned = call.on_error == "return" and error.status in OF_INPUTS
    if index is None and not too_large and "the inputs" not in error.detail:
        # a refusal that names a field is about the field
        fields = map(re.escape, call.body or ())
        returned &= not any(re.search(rf"\b{field}\b", error.detail) for field in fields)
    if call.whole:
        raise call.placed(error, part, index)
    if len(part) > 1 and index is None and (returned or too_large):
        return _halves(part)
    if not (returned and isinstance(error, Refused)):
        raise call.placed(error, part, index)
    place = 0 if index is None else part.index(index)
    before, after = part[:place], part[place + 1 :]
    # the inputs after a refused first one may be refused too, so they are sent in halves
    remaining = [after] if before else _halves(after)
    placed = call.placed(error, part, part[place])
    pieces: list[range | HeadscopeError] = [before, placed, *remaining]
    return [piece for piece in pieces if piece]


def _halves(part: range) -> list[range]:
    """Return both halves of some inputs; the first is empty for a single input."""
    middle = len(part) // 2
    return [part[:middle], part[middle:]]
