"""Recordings of the replies to a fixed list of requests, and their comparison.

    python -m trials.recording record --url http://localhost:8000 --out before.jsonl
    python -m trials.recording record --url … --api-key KEY --out before_keys.jsonl
    python -m trials.recording fake --out tests/recording/replies.jsonl
    python -m trials.recording compare before.jsonl after.jsonl

A service on this machine needs `--allowed-hosts '*'`, as requests name hosts of their own. Requests
are sent one after another, each over a connection of its own. A line of a recording is a request's
name and its replies; values that differ between runs are replaced, see `normalise.RULES`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from trials.recording.compare import compare
from trials.recording.entries import WHOLE_BYTES, Entry, read, write
from trials.recording.record import record, record_fake
from trials.recording.requests import Group


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code: 1 if recordings differ."""
    options = _parser().parse_args(arguments)
    if options.command == "compare":
        differences = compare(read(options.old), read(options.new), near=options.near)
        print("\n".join(differences) or "no difference")
        return 1 if differences else 0
    if options.command == "fake":
        entries: Iterable[Entry] = record_fake()
    else:
        entries = record(
            options.url,
            api_key=options.api_key,
            without=options.without,
            whole_bytes=options.whole_bytes,
        )
    print(f"{write(entries, options.out)} requests")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trials.recording")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="send every request to a service")
    recording.add_argument("--url", required=True)
    recording.add_argument(
        "--api-key", help="API key of the service: only the requests about keys are sent"
    )
    recording.add_argument("--without", nargs="*", default=(), choices=get_args(Group))
    recording.add_argument("--whole-bytes", type=int, default=WHOLE_BYTES)
    fake = commands.add_parser("fake", help="start the service over the fake engine, and record it")
    for command in (recording, fake):
        command.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare", help="print the differences of two recordings")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument(
        "--near", action="store_true", help="allow for another processor's rounding"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
