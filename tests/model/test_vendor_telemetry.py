from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

import pytest

from model.vendor_telemetry import OPENVINO, VARIABLES, switch_off


def test_variables_that_are_missing_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    switch_off()
    assert os.environ.items() >= VARIABLES.items()


def test_an_operator_s_own_value_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    switch_off()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_openvino_s_package_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, OPENVINO, raising=False)
    switch_off()
    with pytest.raises(ModuleNotFoundError, match=OPENVINO):
        importlib.import_module(OPENVINO)


def test_a_package_that_is_imported_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = ModuleType(OPENVINO)
    monkeypatch.setitem(sys.modules, OPENVINO, imported)
    switch_off()
    assert sys.modules[OPENVINO] is imported


@pytest.mark.parametrize("package", ["model", "service", "deploy.ray", "benchmarks", "tests"])
def test_every_package_that_may_import_a_runtime_switches_it_off(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    importlib.reload(importlib.import_module(package))
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
