"""Replies to a fixed list of requests, recorded, and compared with another recording.

    python -m trials.recording record --url http://localhost:8000 --out before.jsonl
    python -m trials.recording record --url … --api-key KEY --out before_keys.jsonl
    python -m trials.recording fake --out tests/recording/replies.jsonl
    python -m trials.recording compare before.jsonl after.jsonl

A service on this machine's own address needs `--allowed-hosts '*'`, as requests name their own.
Requests are sent one after the other, each over a connection of its own. A line of a recording is
a request's name and its replies; values that differ from one run to the next have been replaced,
see `normalise.RULES`.
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
    """Run a command; the exit code is 1 when recordings differ."""
    options = _parser().parse_args(arguments)
    if options.command == "compare":
        found = compare(read(options.old), read(options.new), near=options.near)
        print("\n".join(found) or "no difference")
        return 1 if found else 0
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
    recording.add_argument("--api-key", help="that the service wants: sends the keys' requests")
    recording.add_argument("--without", nargs="*", default=(), choices=get_args(Group))
    recording.add_argument("--whole-bytes", type=int, default=WHOLE_BYTES)
    fake = commands.add_parser("fake", help="start the service over the fake engine, and record it")
    for command in (recording, fake):
        command.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare", help="say how two recordings differ")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--near", action="store_true", help="on another processor")
    return parser


if __name__ == "__main__":
    sys.exit(main())
