"""Validation of the parts of maps that a request selects."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import Unprocessable
from service.inference.attention.map_parts import MapPart
from service.inference.attention.selection import AttentionSelection, Lengths


def check_part(part: MapPart, *, maps: bool, top_k: int | None) -> None:
    """Reject a map part without maps, or a map part that contradicts `top_k`.

    Args:
        part: requested part of each map.
        maps: whether weights or norms are requested.
        top_k: requested number of largest weights of each query.

    Raises:
        Unprocessable: the part contradicts the other fields.

    """
    given = {"queries": part.queries, "keys": part.keys, "max_size": part.max_size}
    asked = [name for name, value in given.items() if value is not None]
    if asked and not maps:
        raise Unprocessable(f"{asked[0]} is of weights and norms, which `include` leaves out")
    if top_k is not None and asked not in ([], ["queries"]):
        raise Unprocessable(f"{asked[-1]} and top_k both choose keys: leave one of them out")


def check_places(selection: AttentionSelection, lengths: Sequence[Lengths]) -> None:
    """Reject queries and keys that do not exist in a text or are listed twice.

    Raises:
        Unprocessable: an index is invalid; the message names the text.

    """
    asked = ("queries", selection.part.queries), ("keys", selection.part.keys)
    checked: set[tuple[str, int]] = set()
    for index, own in enumerate(lengths if selection.part.chosen else ()):
        for kind in selection.of_kinds:
            of_target = kind != "encoder", kind == "decoder"
            for (name, values), size, read_by_decoder in zip(
                asked, own.shape(kind), of_target, strict=True
            ):
                if values is not None and (name, size) not in checked:
                    text = f"{'targets' if read_by_decoder else 'inputs'}[{index}]"
                    check_axis(name, values, size, text)
                    checked.add((name, size))


def check_axis(name: str, values: Sequence[int], size: int, text: str) -> None:
    """Reject token indices that are out of range for `size` tokens, or listed twice.

    Raises:
        Unprocessable: an index is invalid; the message names the text.

    """
    for value in min(values), max(values):
        if not -size <= value < size:
            raise Unprocessable(
                f"{name}: {value} is not in {-size} … {size - 1}, the tokens of {text}"
            )
    if len({value % size for value in values}) != len(values):
        raise Unprocessable(
            f"{name}: one of {text} is listed twice (negative ones count from the end)"
        )
