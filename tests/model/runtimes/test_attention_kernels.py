"""Kernels of attention are read from what ONNX Runtime prints about new sessions."""

from __future__ import annotations

import os

import pytest

from model.runtimes.cuda import selected_kernels

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
