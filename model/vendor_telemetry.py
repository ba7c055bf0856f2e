"""Telemetry of the libraries that compute or download, switched off before they are imported.

ONNX Runtime reads its variable once, at import. Without it, ONNX Runtime writes a device id into
the user's cache folder and sends events, even after `disable_telemetry_events()`. OpenVINO has no
variable: it imports `openvino_telemetry`, which writes a client id into the home folder and
contacts an analytics host, and uses a stub of its own if that package is missing. Plugins of
pydantic, as Logfire has one, see the content of requests; the search for them takes 20 ms of a
start.
docs/decisions/0028-no-telemetry.md compares the ways to switch it off.
"""

from __future__ import annotations

import os
import sys

VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}
"""Values that switch off the telemetry of ONNX Runtime, `huggingface_hub` and Ray, and plugins."""
OPENVINO = "openvino_telemetry"
"""Name of the package that sends OpenVINO's telemetry."""


def switch_off() -> None:
    """Set the variables that the environment lacks, and block imports of OpenVINO's telemetry.

    Child processes inherit the variables.
    """
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    sys.modules.setdefault(OPENVINO, None)  # type: ignore[arg-type]  # None makes the import fail
