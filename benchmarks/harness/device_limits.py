"""Rates that PyTorch reaches on the device: matrix products in each type, copies each way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness.timing import Call, device_seconds

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
"""Types of matrix products; tf32 is float32 in a GPU's matrix units, and plain float32 on a CPU."""
WAYS = (
    "device to host, pinned",
    "device to host, pageable",
    "host to device, pinned",
    "host to device, pageable",
    "device to device",
)
PINNED, PAGEABLE = WAYS[:2]


def products(rows: Sequence[int], *, cuda: bool) -> dict[str, float]:
    """Return the best FLOP/s of square products of random numbers over all sizes, by type."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return {
            name: max(product(n, dtype, cuda=cuda) for n in rows) for name, dtype in TYPES.items()
        }
    finally:
        torch.set_float32_matmul_precision(before)


def product(n: int, dtype: torch.dtype, *, cuda: bool) -> float:
    device = "cuda" if cuda else "cpu"
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2.0 * n**3 / device_seconds(lambda: torch.mm(a, b, out=out), cuda=cuda)


def copies(size: int) -> dict[str, float]:
    """Return bytes a second by direction; within the device, bytes read and written both count."""
    host = torch.ones(size, dtype=torch.uint8)
    pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    device = torch.ones(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(device)
    calls: tuple[Call, ...] = (
        lambda: pinned.copy_(device, non_blocking=True),
        lambda: host.copy_(device),
        lambda: device.copy_(pinned, non_blocking=True),
        lambda: device.copy_(host),
        lambda: other.copy_(device),
    )
    rates = {
        way: size / device_seconds(call, cuda=True) for way, call in zip(WAYS, calls, strict=True)
    }
    rates[WAYS[-1]] *= 2
    return rates
