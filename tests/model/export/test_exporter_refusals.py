"""T5's hidden states exceed half precision, which is why transformers keeps `wo` in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import T5PreTrainedModel

from model.errors import ConfigError
from model.export.exporter import check_precision, export


def test_t5_is_refused_in_half_precision_and_told_what_to_do(
    encoder_decoders: Callable[[str], Path], tmp_path: Path
) -> None:
    assert T5PreTrainedModel._keep_in_fp32_modules == ["wo"]
    with pytest.raises(ConfigError, match=r"t5 is not exported in fp16, .*; export it in fp32"):
        export(encoder_decoders("t5"), tmp_path / "out", "t5", "fp16")
    assert list(tmp_path.iterdir()) == []


def test_what_is_exported_in_what() -> None:
    with pytest.raises(ConfigError, match="mt5 is not exported in fp16"):
        check_precision("fp16", "mt5", decoder=False)
    with pytest.raises(ConfigError, match="is exported in fp32, not bf16"):
        check_precision("bf16", "t5", decoder=True)
    for precision in ("fp32", "bf16", "int8"):
        check_precision(precision, "t5", decoder=False)
    check_precision("fp16", "bart", decoder=True)
    check_precision("fp16", "not of ours", decoder=False)
