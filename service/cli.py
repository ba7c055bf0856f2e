"""headscope serve | export | verify | bench | fetch."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError
from pydantic_settings import CliApp

from model.artifact.manifest import Artifact, Precision, load_artifact
from model.errors import ModelError
from model.runtimes.contract import Device
from model.sources.foreign import ForeignGraph
from model.sources.locate import display_name
from service import logs, system
from service.artifacts import (
    find_checkpoint,
    find_foreign,
    open_artifact,
    require_exporter,
    told,
)
from service.distribution import EXPORTER, require
from service.environment import whole
from service.errors import ServiceError
from service.precision import precision_note
from service.served import checkpoint_of, each
from service.settings import Settings

USAGE = """usage: headscope COMMAND [options]

commands:
  serve     serve a model, or an exported artifact, over HTTP; or several
  export    turn a checkpoint into an artifact, and verify it
  verify    hold an artifact's ONNX graphs against PyTorch
  bench     rank scored sentence pairs by one or several artifacts, and time that
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
    settings = CliApp.run(Settings, cli_args=list(whole(arguments)))
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
        artifacts = reading.submit(_open, settings, say)
        if settings.workers > 1:
            from service.process.supervisor import serve
        else:
            from service.process.server import (
                serve,  # the web framework is loaded while files are hashed
            )
    return serve(settings, artifacts.result())


def _open(settings: Settings, say: Callable[[str], None]) -> list[Artifact]:
    if settings.precision != "auto":
        return [open_artifact(one, say) for one in each(settings)]
    from service.fastest import open_fastest

    return [open_fastest(one, say) for one in each(settings)]


def _export(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="headscope export")
    parser.add_argument("--model", help=_NAME)
    parser.add_argument("--revision", help=_REVISION)
    parser.add_argument("--out", type=Path, help="the artifact's folder; the cache by default")
    parser.add_argument(
        "--precision",
        choices=("auto", *get_args(Precision)),
        help="fp32 is exact; fp16 is for a GPU; bf16 and int8 are faster on a CPU, by OpenVINO; "
        "auto exports what may be the fastest here, and keeps what is",
    )
    parser.add_argument(
        "--pairs", type=Path, help="with auto: a CSV file that each candidate ranks, as for bench"
    )
    _add_device(parser)
    options = parser.parse_args(arguments)
    settings = _of_model(options.model, options.revision, options.device, options.precision)
    graph = find_foreign(settings, _say, settings.precision)
    if graph is not None:
        return _export_foreign(graph, settings, options.out)
    require("an export", *EXPORTER)
    if settings.precision == "auto":
        return _export_fastest(settings, options.out, options.pairs)
    if options.pairs:
        raise ValueError("--pairs is for --precision auto; headscope bench ranks one artifact")
    require_exporter(checkpoint_of(settings), settings.precision)
    if note := precision_note(settings.precision):
        _say(note)
    if options.out is None:
        print(open_artifact(settings, _say).folder)
        return 0
    checkpoint = find_checkpoint(settings, _say)
    name = display_name(checkpoint_of(settings))
    from model.export.exporter import export

    exported = export(checkpoint, options.out, name, settings.precision, _say, settings.device)
    print(exported.artifact.folder)
    return 0 if exported.verification.passed else 1


def _export_foreign(graph: ForeignGraph, settings: Settings, out: Path | None) -> int:
    if out is None:
        print(open_artifact(settings, _say).folder)
        return 0
    from model.export.foreign import export_foreign

    name = display_name(checkpoint_of(settings))
    artifact = told(export_foreign(graph, out, name, _say), _say)
    print(artifact.folder)
    return 0 if artifact.manifest.verification.passed else 1


def _export_fastest(settings: Settings, out: Path | None, pairs: Path | None) -> int:
    from service.fastest import export_fastest, open_fastest

    if out is None:
        print(open_fastest(settings, _say, pairs, again=True).folder)
        return 0
    artifact = export_fastest(settings, out, _say, pairs)
    print(artifact.folder)
    return 0 if artifact.manifest.verification.passed else 1


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
    parser.add_argument(
        "--artifact",
        type=Path,
        required=True,
        action="append",
        help="an artifact's folder; several are compared side by side",
    )
    parser.add_argument(
        "--pairs", type=Path, required=True, help="a CSV file: sentence,sentence,score a line"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args(arguments)
    from service.engines.onnx import OnnxEngine
    from service.evaluation import compare, score, standings

    artifacts = [load_artifact(folder) for folder in options.artifact]
    if len(artifacts) > 1:
        found = compare(artifacts, options.device, options.pairs)
        print("\n".join(standings(artifacts, found)))
        return 0
    (artifact,) = artifacts
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


def _of_model(
    model: str | None,
    revision: str | None,
    device: Device = "auto",
    precision: Precision | Literal["auto"] | None = None,
) -> Settings:
    """The settings with these flags; without a model the environment's, and no artifact of it."""
    given: dict[str, Any] = {"model": model, "revision": revision, "precision": precision}
    if model is None:
        environment = Settings()
        given |= {"model": environment.model, "revision": revision or environment.revision}
    chosen = {name: value for name, value in given.items() if value is not None}
    return Settings(device=device, **chosen)


def _say(step: str) -> None:
    print(f"headscope: {step}", file=sys.stderr, flush=True)


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()
        )
    return " ".join(str(error).split())
