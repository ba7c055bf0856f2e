"""Choice of a device, errors for a device that does not work, and detection of lost devices."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from model.artifact.manifest import Artifact
from model.errors import ProviderError
from model.export.exporter import export
from model.runtimes import bound, cuda
from model.runtimes import onnx as runtime_onnx
from model.runtimes.bound import HostMemory, Place
from model.runtimes.contract import Resources
from model.runtimes.cuda import selected_kernels
from model.runtimes.onnx import OnnxRuntime, choose, provider_options
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import check_device, load_runtime

GPU = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def cuda_works() -> bool:
    return torch.cuda.is_available() or Path("/dev/nvidiactl").exists()


@dataclasses.dataclass
class Driver:
    """Fake of libcuda.so.1."""

    count: int = 1
    version: int = 13000
    code: int = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self.code

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulate a machine with this driver, without the named libraries."""
    real = ctypes.CDLL

    def become(driver: Driver | None, absent: tuple[str, ...] = ()) -> None:
        def load(name: str, *arguments: Any) -> Any:
            if (name == "libcuda.so.1" and driver is None) or Path(name).name in absent:
                raise OSError(f"{Path(name).name}: cannot open shared object file")
            return driver if name == "libcuda.so.1" else real(name, *arguments)

        monkeypatch.setattr(cuda.ctypes, "CDLL", load)
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: GPU)
        monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")

    return become


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_machine_without_a_gpu_serves_on_its_cpu(tiny_artifact: Artifact, device: Any) -> None:
    if device == "auto" and cuda_works():
        pytest.skip("this machine has a GPU, which auto takes")
    runtime = load_runtime(tiny_artifact, Resources(device, threads=3))
    assert isinstance(runtime, OnnxRuntime)
    assert runtime.config == tiny_artifact.manifest.config
    assert runtime.provider == "CPUExecutionProvider"


def test_half_precision_goes_the_devices_way_on_a_cpu_too(tiny_fp16: Artifact) -> None:
    runtime = load_runtime(tiny_fp16)
    assert isinstance(runtime, BoundRuntime)
    assert runtime.provider == "CPUExecutionProvider"


def test_cuda_is_never_replaced_by_the_cpu(tiny_artifact: Artifact, tiny_fp16: Artifact) -> None:
    if cuda_works():
        pytest.skip("this machine has a GPU")
    for artifact in (tiny_artifact, tiny_fp16):
        with pytest.raises(ProviderError, match="device cuda: "):
            load_runtime(artifact, Resources("cuda"))


def test_a_package_for_cpus_only_is_named(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(Driver())
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: GPU[1:])
    with pytest.raises(ProviderError, match="package is for CPUs only, onnxruntime-gpu is needed"):
        choose("cuda")
    assert choose("auto") == "cpu"


@pytest.mark.parametrize(("version", "works"), [("1.27.9", False), ("1.28.0", True), ("2.0", True)])
def test_a_version_that_sums_variances_in_half_precision_is_named(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, version: str, works: bool
) -> None:
    machine(Driver())
    monkeypatch.setattr(onnxruntime, "__version__", version)
    if works:
        assert choose("cuda") == "cuda"
        return
    with pytest.raises(ProviderError, match=r"onnxruntime-gpu 1\.27\.9 .* install 1\.28 or later"):
        choose("cuda")


@pytest.mark.parametrize(
    ("driver", "auto", "device_id", "said"),
    [
        (None, "cpu", 0, "there is no NVIDIA driver: libcuda.so.1: cannot open shared object file"),
        (Driver(count=0), "cpu", 0, "the NVIDIA driver sees no device"),
        (Driver(count=0, code=100), "cpu", 0, "the NVIDIA driver sees no device"),
        (Driver(code=803), "cpu", 0, "the NVIDIA driver fails with error 803"),
        (Driver(count=2), "cuda", 2, "there is no device 2, only 2 from 0"),
        (Driver(version=12090), "", 0, "the NVIDIA driver is for CUDA 12, 13 is needed"),
    ],
    ids=str,
)
def test_what_the_driver_lacks_is_named(
    machine: Callable[..., None], driver: Driver | None, auto: str, device_id: int, said: str
) -> None:
    """Without a device that the driver sees, "auto" takes the CPU."""
    machine(driver)
    with pytest.raises(ProviderError) as caught:
        choose("cuda", device_id)
    assert str(caught.value) == f"device cuda: {said}"
    assert choose("cpu") == "cpu"
    assert not auto or choose("auto") == auto


@pytest.mark.parametrize("version", [13000, 13020, 14000])
def test_a_driver_that_will_do(machine: Callable[..., None], version: int) -> None:
    machine(Driver(2, version))
    assert choose("cuda", 1) == choose("cuda") == choose("auto") == "cuda"
    assert choose("cpu") == "cpu"


class FallenBack:
    """Session of `onnxruntime-gpu` whose CUDA provider cannot be loaded."""

    def __init__(self, *_: object, **__: object) -> None:
        """Accept the arguments of a session."""

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]


def test_a_library_that_cannot_be_loaded_is_named(
    machine: Callable[..., None],
    tiny_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The driver is present, but ONNX Runtime's library lacks cuBLAS, or is missing itself."""
    if cuda_works():
        pytest.skip("this machine has a GPU")
    if GPU[0] not in onnxruntime.get_available_providers():  # the package for CPUs
        monkeypatch.setattr(onnxruntime, "InferenceSession", FallenBack)
        library = Path("libonnxruntime_providers_cuda.so")
        monkeypatch.setattr(runtime_onnx, "_CUDA_LIBRARY", library)
    machine(Driver())
    with pytest.raises(ProviderError, match=r"^device cuda: ONNX Runtime cannot use it: lib\w+.so"):
        load_runtime(tiny_artifact, Resources("cuda"))
    assert capfd.readouterr() == ("", "")  # the error is the only message


def test_cudnn_is_missed_at_the_start(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tiny_fp16: Artifact
) -> None:
    """ONNX Runtime itself would load it in the first batch that pools hidden states."""
    machine(Driver(), absent=("libcudnn.so.9",))
    monkeypatch.setattr(runtime_onnx, "_session", lambda *_, **__: object())
    with pytest.raises(ProviderError, match=r"cuDNN 9 is needed .*: libcudnn\.so\.9: cannot open"):
        load_runtime(tiny_fp16, Resources("cuda"))


def test_the_first_library_that_fails_is_named(machine: Callable[..., None]) -> None:
    machine(Driver(), absent=("libcudnn.so.9",))
    assert cuda.unloadable(["libm.so.6"]) is None
    found = cuda.unloadable(["libm.so.6", "libcudnn.so.9", "libabsent.so"])
    assert found == "libcudnn.so.9: cannot open shared object file"


def test_a_device_that_is_not_there_is_refused_before_an_export(
    tiny_checkpoint: Path, tmp_path: Path, machine: Callable[..., None]
) -> None:
    machine(None)
    reported: list[str] = []
    for precision, said in (("fp16", "no NVIDIA driver"), ("bf16", "OpenVINO runs on the CPU")):
        with pytest.raises(ProviderError, match=said):
            export(tiny_checkpoint, tmp_path / "out", "tiny", precision, reported.append, "cuda")
    assert reported == []
    assert not (tmp_path / "out").exists()
    check_device("openvino", "cpu")
    check_device("onnx", "auto")


def test_memory_grows_by_what_is_needed_up_to_a_limit_on_the_device_asked_for() -> None:
    assert provider_options(Place("cuda", 3), 2**30) == {
        "device_id": "3",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "gpu_mem_limit": "1073741824",
    }
    assert "gpu_mem_limit" not in provider_options(Place("cuda"), None)
    assert provider_options(Place("cpu"), 2**30) == {}


def test_device_and_limit_reach_every_session(
    tiny_artifact: Artifact, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Any, Any]] = []
    places: list[tuple[str, int]] = []
    real = onnxruntime.InferenceSession

    class Session:
        """Session that reports CUDA, but never runs on it."""

        def __init__(self, path: str, options: Any, providers: Any, enable_fallback: int) -> None:
            asked.append((Path(path).name, providers, enable_fallback))
            self._real = real(path, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return GPU

    class Value:
        @staticmethod
        def ortvalue_from_numpy(array: Any, kind: str, index: int) -> Any:
            places.append((kind, index))
            return array

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "OrtValue", Value)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(runtime_onnx, "_check_cudnn", lambda: None)
    monkeypatch.setattr(runtime_onnx, "_page_locked", lambda: None)
    machine(Driver(count=4))
    runtime = load_runtime(tiny_artifact, Resources("auto", 1, 3, 2**30))
    assert runtime.provider == "CUDAExecutionProvider"
    options = provider_options(Place("cuda", 3), 2**30)
    assert asked == [
        (f"{name}.onnx", [("CUDAExecutionProvider", options)], 0)
        for name in ("encoder", "device_attention", "device_pooling")
    ]
    assert set(places) == {("cuda", 3)}
    assert len(places) == 2 * 4  # layers, and parameters of each


def test_no_session_falls_back_to_the_cpu(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default a failed run is printed, and repeated on the CPU from then on."""
    made: list[Any] = []
    real = onnxruntime.InferenceSession

    def session(*arguments: Any, **options: Any) -> Any:
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(runtime_onnx.onnxruntime, "InferenceSession", session)
    load_runtime(tiny_artifact, Resources(threads=2))
    assert [one._enable_fallback for one in made] == [False] * 3


LOST = [
    "Non-zero status code returned while running Gemm node. CUDA failure 700: an illegal memory "
    "access was encountered ; GPU=0 ; hostname=h ; file=gemm.cc ; line=1 ; expr=cudaGetLastError()",
    "CUDA failure 719: unspecified launch failure ; GPU=0",
    "CUDA failure 710: device-side assert triggered ; GPU=1",
    "CUDA error 214: uncorrectable ECC error encountered",
    "CUDA failure 999: unknown error",
    "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0",
    "CUBLAS failure 14: CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED",
    "the device reported an unrecoverable error",
]
PASSING = [
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=h700 ; expr=cudaMalloc((void**)&p, size)",
    "BFCArena::AllocateRawInternal Available memory of 700 is smaller than requested bytes of 719",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA failure 1: invalid argument",
    "CUDA failure 720: too many blocks in cooperative launch",
    "Got invalid dimensions for input: input_ids for the following indices index: 0 Got: 700",
    "indices element out of data bounds, idx=999 must be within the inclusive range [-700,699]",
    "",
]


@pytest.mark.parametrize("message", LOST)
def test_a_sticky_error_is_recognised(message: str) -> None:
    assert cuda.is_lost(message)
    assert cuda.is_lost(message.upper())


@pytest.mark.parametrize("message", PASSING)
def test_an_error_that_passes_is_not_taken_for_one(message: str) -> None:
    assert not cuda.is_lost(message)


PRINTED = (
    "\x1b[36mAttentionKernelOptions: FLASH_ATTENTION=1 MATH=1\x1b[0m\n"
    "\x1b[36mOperator=PackedMultiHeadAttention Node=a.5 DataType=fp16 "
    "SdpaKernel=FLASH_ATTENTION\x1b[0m\n"
    "\x1b[36mOperator=PackedMultiHeadAttention Node=b.9 DataType=fp16 "
    "SdpaKernel=EFFICIENT_ATTENTION\x1b[0m\n"
    "\x1b[36mOperator=PackedMultiHeadAttention DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m\n"
)


def test_kernels_are_named_once_and_other_output_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    set_to = []

    def compute() -> None:
        set_to.append(os.environ["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"])
        os.write(1, b"before\n")
        os.write(1, PRINTED.encode())
        os.write(1, b"after\n")

    assert selected_kernels(compute) == ("EFFICIENT_ATTENTION", "FLASH_ATTENTION")
    assert set_to == ["1"]
    assert "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO" not in os.environ
    assert capfd.readouterr().out == "before\nafter\n"
    assert selected_kernels(lambda: None) == ()


def test_output_returns_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        os.write(1, b"lost?\n")
        raise RuntimeError("the session failed")

    with pytest.raises(RuntimeError, match="the session failed"):
        selected_kernels(fail)
    os.write(1, b"back\n")
    assert "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO" not in os.environ
    assert capfd.readouterr().out == "lost?\nback\n"


SHAPE = (3, 128, 128)


class Locks:
    """Stand-in for CUDA's function, which records what it page-locks."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[tuple[int, int]] = []
        self.error = error

    def __call__(self, address: int, size: int) -> int:
        self.calls.append((address, size))
        return self.error


def test_memory_is_used_again_once_no_view_is_left() -> None:
    locks = Locks()
    memory = HostMemory(locks)
    first = memory.take(SHAPE)
    address = first.ctypes.data
    first[:] = 7
    part = first[1:].reshape(-1)[5:]
    del first
    gc.collect()
    second = memory.take(SHAPE)
    assert second.ctypes.data != address
    second[:] = 0
    assert set(part.tolist()) == {7.0}
    del part
    gc.collect()
    assert memory.take(SHAPE).ctypes.data == address
    assert len(locks.calls) == 2
    assert memory.locked_bytes == sum(size for _, size in locks.calls)


def test_arrays_are_writable_float32_of_the_shape() -> None:
    array = HostMemory(Locks()).take(SHAPE)
    assert (array.shape, array.dtype, array.flags.writeable) == (SHAPE, np.float32, True)
    assert array.flags.c_contiguous
    assert HostMemory(None).take(SHAPE).flags.owndata, "without a device, memory is ordinary"


def test_small_arrays_and_memory_beyond_the_limit_are_ordinary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = Locks()
    memory = HostMemory(locks)
    assert memory.take((10, 10)).flags.owndata
    monkeypatch.setattr(bound, "MOST_BYTES", 300_000)
    kept = [memory.take(SHAPE) for _ in range(3)]
    assert [array.flags.owndata for array in kept] == [False, True, True]
    assert len(locks.calls) == 1


def test_a_refusal_to_lock_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    locks = Locks(error=2)
    memory = HostMemory(locks)
    with caplog.at_level(logging.WARNING, "headscope"):
        arrays = [memory.take(SHAPE) for _ in range(2)]
    assert all(array.flags.owndata for array in arrays)
    assert len(locks.calls) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA cannot page-lock host memory (error 2): copies are slow"
    ]
