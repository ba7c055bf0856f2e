"""Quality of int8 as on a processor without 8-bit products.

One run of pytest in a process whose oneDNN is kept from the better instructions: the tests of which
8-bit weights fail there, and 7-bit ones do not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from model.runtimes.registry import has_products
from tests.conftest import LESSER, SHARED

ROOT = Path(__file__).resolve().parents[1]
FILE = "tests/service/inference/test_core_precisions.py"
TESTS = ["test_the_record_of_every_precision[int8-0.965]"]
TESTS_ON_SHARED_DATA = [
    "test_the_quality_of_every_precision[int8-0.4]",
    "test_how_near_a_precision_is_to_fp32[int8-0.98-0.995]",
    "test_the_company_of_a_text_does_not_matter[int8]",
]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(not has_products("int8"), reason="this processor is of the lesser kind")
def test_int8_is_as_near_without_8_bit_products(exports: Path, tmp_path: Path) -> None:
    chosen = TESTS + (TESTS_ON_SHARED_DATA if SHARED.is_dir() else [])
    options = ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *(f"{FILE}::{test}" for test in chosen), *options],
        cwd=ROOT,
        env=os.environ | LESSER | {"EXPORTS_OF_TESTS": str(exports)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"\b{len(chosen)} passed", done.stdout), done.stdout
