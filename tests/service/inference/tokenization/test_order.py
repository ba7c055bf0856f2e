"""The order in which requests are tokenised."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from service.inference.tokenization.order import SojournOrder


@dataclass(eq=False)
class Request:
    """A request whose slices take a second each."""

    name: str
    client: str
    left: float


def served(turns: SojournOrder[Request], seconds: int = 1000) -> str:
    """The requests whose slices are done, one letter a second."""
    order = ""
    while len(order) < seconds and (request := turns.first()):
        turns.account(request, 1.0)
        if request.left <= 0:
            turns.remove(request)
        order += request.name
    return order


def push(turns: SojournOrder[Request], *requests: str) -> None:
    """Add requests, each named by its letter, client and seconds, such as `A of x: 3`."""
    for request in requests:
        name, client, seconds = request.split()
        turns.push(Request(name, client, float(seconds)))


def test_a_large_request_is_finished_before_the_next_one_of_its_client_begins() -> None:
    turns: SojournOrder[Request] = SojournOrder()
    push(turns, "A x 4", "B x 4", "C x 4")
    assert served(turns) == "AAAABBBBCCCC"


def test_a_small_request_goes_before_large_ones_that_came_earlier() -> None:
    turns: SojournOrder[Request] = SojournOrder()
    push(turns, "A x 9", "B x 9")
    assert served(turns, 3) == "AAA"
    push(turns, "s x 1")
    assert served(turns) == "s" + "A" * 6 + "B" * 9


def test_small_requests_that_keep_coming_do_not_hold_up_a_large_one_for_ever() -> None:
    turns: SojournOrder[Request] = SojournOrder()
    push(turns, "A x 5")
    order = ""
    for _ in range(20):
        push(turns, "s x 1")
        order += served(turns, 1)
    assert order.count("A") == 5


def test_clients_have_equal_shares() -> None:
    turns: SojournOrder[Request] = SojournOrder()
    push(turns, *["A x 50"] * 10)
    served(turns, 20)
    push(turns, "B y 6")
    order = served(turns, 12)
    assert 5 <= order.count("B") <= 6, "it has its half from when it comes, and no credit"


def test_none_ends_later_than_if_all_advanced_at_once() -> None:
    sizes = [3, 9, 1, 6, 2]
    turns: SojournOrder[Request] = SojournOrder()
    push(turns, *(f"{n} x {size}" for n, size in enumerate(sizes)))
    order = served(turns)
    for n, size in enumerate(sizes):
        shared = sum(min(size, other) for other in sizes)
        assert order.rindex(str(n)) + 1 <= shared


def test_the_work_before_a_request_is_known_when_it_comes() -> None:
    turns: SojournOrder[Request] = SojournOrder()
    push(turns, "A x 4", "B x 9", "C y 2")
    served(turns, 2)  # one each
    assert turns.before("x", 1) == 1, "the other client's second"
    assert turns.before("x", 5) == pytest.approx(3 + 1)
    assert turns.before("x", 100) == pytest.approx(3 + 9 + 1)
    assert turns.before("z", 2) == pytest.approx(2 + 1)


def test_who_leaves_is_forgotten() -> None:
    turns: SojournOrder[Request] = SojournOrder()
    gone, other = Request("A", "x", 4.0), Request("B", "x", 1.0)
    for request in (gone, other):
        turns.push(request)
    turns.remove(gone)
    turns.remove(gone)
    assert list(turns) == [other]
    assert served(turns) == "B"
    assert turns.first() is None
