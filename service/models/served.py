"""A served model: one version of a model, with its own engine, tokenizer, queues and watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from model.artifact.manifest import Artifact
from service.errors import Unprocessable
from service.health.engine import EngineHealth
from service.inference.core import Inference
from service.inference.fingerprint import FINGERPRINT_HEADER, fingerprint_of
from service.inference.tokenization.inputs import Input, Picture
from service.settings import Settings
from service.settings.served import prompts_given

Modality = Literal["text", "image"]


class Uses:
    """Number of requests that a model answers now, so that it is released after the last of them.

    For use on the event loop.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last_began = time.monotonic()
        """`time.monotonic()` when the last request began, or when the model was loaded."""
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """Count a request; its end calls `end`."""
        self.count += 1
        self.last_began = time.monotonic()

    def end(self) -> None:
        """Stop counting a request."""
        self.count -= 1
        if not self.count:
            self._ended.set()

    async def drained(self) -> None:
        """Wait until no request is counted."""
        while self.count:
            self._ended.clear()
            await self._ended.wait()


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model with its own parts."""

    name: str
    """Name by which requests choose the model."""
    settings: Settings
    """Settings with which the model was started."""
    artifact: Artifact
    inference: Inference
    health: EngineHealth
    precision_note: str | None = None
    """Note that another precision is likely faster on this processor, with the reason."""
    version: str = "1"
    """Version of the model, by which requests can choose one of several."""
    uses: Uses = field(default_factory=Uses)
    """Requests that the model answers."""
    vision: ServedModel | None = None
    """Vision tower of a model with two towers; the model itself is then the text tower."""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch over the engines and verify live batches while the block runs."""
        vision = self.vision.running() if self.vision else contextlib.nullcontext()
        async with self.health.watching(), vision:
            yield

    def close(self) -> bool:
        """Wait for the running work of all towers to finish; return whether it did."""
        finished = [tower.inference.close() for tower in self.towers]
        return all(finished)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Kinds of inputs that the model reads."""
        return tuple("image" if tower.artifact.manifest.images else "text" for tower in self.towers)

    @property
    def towers(self) -> tuple[ServedModel, ...]:
        """The model and its vision tower, if it has one."""
        return (self,) if self.vision is None else (self, self.vision)

    def tower(self, inputs: Sequence[Input]) -> ServedModel:
        """Return the tower that encodes the inputs of a request.

        Raises:
            Unprocessable: the model has two towers, and the inputs are for both.

        """
        shares = self.shares(inputs)
        if len(shares) > 1:
            raise Unprocessable(
                f"inputs[0] is for the {shares[0][0].inference.tower} tower, and "
                f"inputs[{shares[1][1][0]}] for the other: send texts and pictures in requests of "
                "their own"
            )
        return shares[0][0]

    def shares(self, inputs: Sequence[Input]) -> list[tuple[ServedModel, Sequence[int]]]:
        """Return each tower that encodes inputs of a request, and the indices of these inputs.

        The tower of the first input comes first. A model with one encoder gets all inputs, which it
        refuses if it does not read them.
        """
        if self.vision is None:
            return [(self, range(len(inputs)))]
        shares: dict[bool, list[int]] = {}
        for index, given in enumerate(inputs):
            shares.setdefault(isinstance(given, Picture), []).append(index)
        return [
            (self.vision if pictures else self, indices) for pictures, indices in shares.items()
        ]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model and the engine that computes it now."""
        return self.fingerprint_header()[1].decode()

    def fingerprint_header(self, engine: str | None = None) -> tuple[bytes, bytes]:
        """Return the fingerprint header of an engine's replies, as the server sends it.

        `engine` is the name of an engine; None for the current one.
        """
        engines = self.inference.engines
        name = engine or engines.stand_in
        return self._fingerprint_headers[bool(name) and name != engines.name]

    @cached_property
    def _fingerprint_headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """Headers of the model's own engine and of its stand-in."""
        provider, name = self.inference.engines.default.engine.provider, FINGERPRINT_HEADER.encode()
        prompts = prompts_given(self.settings, self.name)
        own = fingerprint_of(self.artifact, provider, prompts)
        other = fingerprint_of(self.artifact, provider, prompts, stand_in=True)
        return (name, own.encode()), (name, other.encode())
