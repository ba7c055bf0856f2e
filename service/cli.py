"""headscope serve | export | verify | bench | fetch."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

from pydantic import ValidationError
from pydantic_settings import CliApp

from model.artifact.manifest import Precision, load_artifact
from model.errors import ModelError
from model.runtimes.contract import Device
from model.runtimes.registry import has_products
from model.sources import display_name
from service import logs, system
from service.artifacts import FOREIGN, find_checkpoint, find_foreign, open_artifact
from service.distribution import EXPORTER, require
from service.errors import ServiceError
from service.settings import Settings

USAGE = """usage: headscope COMMAND [options]

commands:
  serve     serve a model, or an exported artifact, over HTTP
  export    turn a checkpoint into an artifact, and verify it
  verify    hold an artifact's ONNX graphs against PyTorch
  bench     rank scored sentence pairs by an artifact, and time that
  fetch     get a model's checkpoint and say where it is

headscope COMMAND --help tells the options of each."""
FAILURES = (ModelError, ServiceError, ValidationError, ValueError, OSError)
"""What a command may end with, told in a line."""
_NAME = "a hub name, name@revision, a folder, or an ONNX file"
_REVISION = "a branch, tag or commit of the hub's repository"

_log = logging.getLogger("headscope")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. What goes wrong is one line on standard error."""
    given = sys.argv[1:] if arguments is None else arguments
    command, *rest = given or ["--help"]
    commands: dict[str, Callable[[list[str]], int]] = {
        "serve": _serve,
        "export": _export,
        "verify": _verify,
        "bench": _bench,
        "fetch": _fetch,
    }
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command not in commands:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        return commands[command](rest)
    except FAILURES as error:
        print(f"headscope {command}: {_one_line(error)}", file=sys.stderr)
        return 1


def _serve(arguments: list[str]) -> int:
    settings = CliApp.run(Settings, cli_args=arguments)
    system.settle_allocator()
    if settings.log_format == "text":
        return _open_and_serve(settings, _say)
    logs.configure(settings.log_level, settings.log_format)
    try:
        return _open_and_serve(settings, _log.info)
    except FAILURES as error:
        _log.critical("headscope serve: %s", _one_line(error))
        return 1


def _open_and_serve(settings: Settings, say: Callable[[str], None]) -> int:
    if "torch" in (settings.engine, settings.fallback) or settings.verify_share:
        require("an answer by PyTorch", "torch")
    with ThreadPoolExecutor(1) as reading:
        artifact = reading.submit(open_artifact, settings, say)
        if settings.workers > 1:
            from service.process.supervisor import serve
        else:
            from service.process.server import (
                serve,  # the web framework is loaded while files are hashed
            )
    return serve(settings, artifact.result())


def _export(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="headscope export")
    parser.add_argument("--model", help=_NAME)
    parser.add_argument("--revision", help=_REVISION)
    parser.add_argument("--out", type=Path, help="the artifact's folder; the cache by default")
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="fp32",
        help="fp32 is exact; fp16 is for a GPU; bf16 and int8 are faster on a CPU, by OpenVINO",
    )
    _add_device(parser)
    options = parser.parse_args(arguments)
    settings = _of_model(options.model, options.revision, device=options.device)
    graph = find_foreign(settings, _say, options.precision)
    if graph is not None and options.out is not None:
        from model.export.foreign import export_foreign

        artifact = export_foreign(graph, options.out, display_name(settings.model), _say)
        _say(FOREIGN)
        print(artifact.folder)
        return 0 if artifact.manifest.verification.passed else 1
    if graph is None:
        require("an export", *EXPORTER)
    if options.precision in ("bf16", "int8"):
        require(f"--precision {options.precision}", "openvino")
    if not has_products(options.precision):
        _say(f"no fast {options.precision} products on this processor: fp32 is likely faster")
    if options.out is None:
        print(open_artifact(settings, _say, options.precision).folder)
        return 0
    checkpoint = find_checkpoint(settings, _say)
    name = display_name(settings.model)
    from model.export.exporter import export

    exported = export(checkpoint, options.out, name, options.precision, _say, options.device)
    print(exported.artifact.folder)
    return 0 if exported.verification.passed else 1


def _verify(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="headscope verify")
    parser.add_argument("--artifact", type=Path, required=True, help="an artifact's folder")
    _add_device(parser)
    options = parser.parse_args(arguments)
    require("a verification", *EXPORTER)
    from model.export.verify import report, verify

    result = verify(load_artifact(options.artifact), options.device)
    print(report(result))
    return 0 if result.passed else 1


def _bench(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="headscope bench")
    parser.add_argument("--artifact", type=Path, required=True, help="an artifact's folder")
    parser.add_argument(
        "--pairs", type=Path, required=True, help="a CSV file: sentence,sentence,score a line"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args(arguments)
    from service.engines.onnx import OnnxEngine
    from service.evaluation import score

    artifact = load_artifact(options.artifact)
    engine = OnnxEngine(artifact, options.device)
    result = score(artifact, engine, options.pairs)
    print(
        f"{artifact.manifest.precision}, {engine.provider}: Spearman {100 * result.spearman:.2f} "
        f"over {result.pairs} pairs, {result.texts_per_second:.0f} texts/s"
    )
    return 0


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the graphs are verified"
    )


def _fetch(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="headscope fetch")
    parser.add_argument("name", nargs="?", help=_NAME)
    parser.add_argument("--revision", help=_REVISION)
    options = parser.parse_args(arguments)
    print(find_checkpoint(_of_model(options.name, options.revision), _say))
    return 0


def _of_model(model: str | None, revision: str | None, device: Device = "auto") -> Settings:
    """The settings with these flags; without a model the environment's, and no artifact of it."""
    if model is None:
        environment = Settings()
        model, revision = environment.model, revision or environment.revision
    return Settings(model=model, revision=revision, device=device)


def _say(step: str) -> None:
    print(f"headscope: {step}", file=sys.stderr, flush=True)


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()
        )
    return " ".join(str(error).split())
