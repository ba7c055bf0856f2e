"""Start of engines: verified by golden texts, warmed up, and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from model.artifact.manifest import Artifact
from model.runtimes import cuda
from model.runtimes.capabilities import HeadMaps, declared
from model.runtimes.contract import Resources
from model.runtimes.registry import check_device
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.engines.measuring import maps_of, measured_batches, measured_cost, texts_of
from service.engines.onnx import CUDA_CALLS, DeviceEngine, OnnxEngine
from service.engines.replicas import Replicas
from service.engines.torch import IDLE_SECONDS, TorchEngine, TorchHosts
from service.models.limits import input_limits
from service.settings import Settings
from service.system.resources import in_lower_priority


def torch_hosts(settings: Settings) -> TorchHosts:
    """Return the PyTorch process of all models; it never ends if it is the service's own engine."""
    idle_seconds = None if settings.engine == "torch" else IDLE_SECONDS
    return TorchHosts(settings.threads, idle_seconds)


def devices_of(devices: str) -> Sequence[int]:
    """Return the indices of the setting `devices`; at least 0, though it may be missing."""
    if devices != "all":
        return [int(device) for device in devices.split(",")]
    return range(cuda.device_count() or 1)


def engine_factories(
    settings: Settings,
    artifact: Artifact,
    trial: Callable[[Engine], None],
    hosts: TorchHosts,
) -> dict[str, Callable[[], Engine]]:
    """Return start functions by engine name; real engines pass a trial before they serve."""

    def onnx() -> Engine:
        threads, own = settings.threads, (settings.device_memory_bytes, settings.cuda_graphs)
        if settings.devices is None:
            device, device_id = settings.device, settings.device_id or 0
            return OnnxEngine(artifact, device, threads, device_id, *own)
        devices = devices_of(settings.devices)
        if len(devices) == 1:
            return OnnxEngine(artifact, "cuda", threads, devices[0], *own)
        check_device(artifact.manifest.runtime, "cuda")

        def start(device_id: int) -> Engine:
            resources = Resources("cuda", threads or CUDA_CALLS, device_id, *own)
            return DeviceEngine(artifact, settings.batch_timeout_seconds, resources)

        return Replicas.start(devices, start, trial)

    def torch() -> Engine:
        return TorchEngine(artifact, settings.batch_timeout_seconds, hosts)

    def tried(start: Callable[[], Engine]) -> Engine:
        with contextlib.ExitStack() as undo:
            engine = start()
            undo.callback(engine.close)
            trial(engine)
            undo.pop_all()
        return engine

    return {
        "onnx": lambda: in_lower_priority(lambda: tried(onnx)),
        "torch": lambda: in_lower_priority(lambda: tried(torch)),
        "fake": lambda: FakeEngine(artifact.manifest.config),
    }


def warmed(
    start: Callable[[], Engine], settings: Settings, idle: Callable[[], object], artifact: Artifact
) -> Callable[[], Engine]:
    """Return a function that starts an engine, warms it up and measures its first batches."""
    longest = input_limits(settings, artifact).max_tokens
    config = artifact.manifest.config

    def started() -> Engine:
        with contextlib.ExitStack() as undo:
            engine = start()
            undo.callback(engine.close)
            batch_tokens = settings.max_batch_tokens or engine.batch_tokens
            engine.warm_up(batch_tokens, longest)
            idle()
            texts = texts_of(config)
            engine.measured = measured_batches(engine, texts, batch_tokens, longest)
            engine.cost = measured_cost(engine, texts, engine.measured, longest)
            if HeadMaps in declared(artifact.manifest):
                maps = measured_batches(engine, maps_of(config), batch_tokens, longest)
                engine.measured_maps = maps
            undo.pop_all()
        return engine

    return started
