"""ONNX Runtime sessions bound to a device, and the state of the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from model.errors import DeviceLostError
from model.runtimes import cuda
from model.runtimes.contract import Floats
from model.runtimes.host_memory import HostMemory
from model.runtimes.sessions import Array, Session


@dataclass(frozen=True)
class Place:
    """Device of tensors."""

    kind: Literal["cpu", "cuda"]
    index: int = 0


class Watch:
    """State of a device, which is lost for good with the first error that means so."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.alive = True

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Raise `DeviceLostError` for an error that means a lost device, and in all later calls."""
        if not self.alive:
            raise DeviceLostError(f"{self.provider}: the device was lost")
        try:
            yield
        except Exception as error:  # onnxruntime's exceptions share no base class
            if not cuda.is_lost(str(error)):
                raise
            self.alive = False
            raise DeviceLostError(f"{self.provider}: the device was lost") from error


class Watched:
    """Session whose calls a watch observes; its inputs and outputs are on the host."""

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session, self._watch = session, watch
        self.get_providers = session.get_providers

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> list[Floats]:
        """Return the outputs with these names."""
        with self._watch():
            return self._session.run(names, feed)


class Bound:
    """Session with inputs on host or device, and outputs on the device."""

    def __init__(self, session: Any, place: Place, watch: Watch, memory: HostMemory) -> None:
        self._session = session
        self._memory = memory
        self._place = place
        self.watch = watch

    def keep(self, feed: Mapping[str, object], outputs: Sequence[str]) -> list[object]:
        """Run the graph; the outputs stay on the device, as `OrtValue`."""
        with self.watch():
            binding = self._binding(feed)
            for name in outputs:
                binding.bind_output(name, self._place.kind, self._place.index)
            self._session.run_with_iobinding(binding)
            return binding.get_outputs()

    def fetch(self, feed: Mapping[str, object], output: str, shape: tuple[int, ...]) -> Floats:
        """Run the graph, and copy one float32 output of this shape into host memory."""
        array = self._memory.take(shape)
        with self.watch():
            binding = self._binding(feed)
            binding.bind_output(output, "cpu", 0, np.float32, shape, array.ctypes.data)
            self._session.run_with_iobinding(binding)
        return array

    def _binding(self, feed: Mapping[str, object]) -> Any:
        binding = self._session.io_binding()
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        return binding
