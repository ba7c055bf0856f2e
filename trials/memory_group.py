"""A control group of one's own, for what happens to a process as its memory's limit comes near."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testing.process import free_port

ROOTS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "max"),
)
"""Of version 1 and 2: where groups are, a group's limit, what it has, and what is no limit."""


@dataclass(frozen=True)
class Group:
    """One group of processes."""

    folder: Path
    root: Path
    limit: str
    usage: str
    unlimited: str

    def starting(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command that runs in it and, as in a container, sees no other."""
        script = (
            f"echo $$ > {self.folder}/cgroup.procs"
            f' && mount --bind {self.folder} {self.root} && exec "$@"'
        )
        return "unshare", "--mount", "sh", "-c", script, "sh", *command

    def leave(self, share: float) -> None:
        """Limit it to what it has and a share of that."""
        used = int((self.folder / self.usage).read_text())
        (self.folder / self.limit).write_text(str(int(used * (1 + share))))

    def free(self) -> None:
        """Limit it no longer."""
        (self.folder / self.limit).write_text(self.unlimited)


@contextlib.contextmanager
def group() -> Iterator[Group]:
    """A new group without a limit; its processes have ended when the block ends.

    Raises:
        OSError: this user may make none.

    """
    root, limit, usage, unlimited = next(one for one in ROOTS if (one[0] / "cgroup.procs").exists())
    folder = root / f"headscope-{os.getpid()}-{free_port()}"
    folder.mkdir()
    try:
        (folder / limit).read_text()
        yield Group(folder, root, limit, usage, unlimited)
    finally:
        folder.rmdir()
