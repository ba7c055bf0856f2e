"""The tests of bf16's and int8's arithmetic, run again as on a processor without their products.

Each run is pytest's own, in a process whose oneDNN is kept from the better instructions; what the
tests demand of each kind of processor stands in them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from model.runtimes.registry import has_products
from tests.conftest import LESSER

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_products("int8"), reason="this processor is of the lesser kind"),
]


@pytest.mark.parametrize(
    ("path", "chosen", "least"),
    [
        ("tests/model/runtimes/test_openvino.py", "bf16 or int8", 30),
        (
            "tests/model/export/test_exporter_precisions.py",
            "int8 and not same_bytes and not kind",
            6,
        ),
        ("tests/service/inference/test_core_precisions.py", "quality or near or company", 5),
    ],
)
def test_they_hold_without_the_products_too(
    exports: Path, tmp_path: Path, path: str, chosen: str, least: int
) -> None:
    """`least`: how many tests it is at the least, so that none is lost from the choice."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        path,
        "-k",
        chosen,
        "--basetemp",
        str(tmp_path / "t"),
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | LESSER | {"EXPORTS_OF_TESTS": str(exports)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least, done.stdout
