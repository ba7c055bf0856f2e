"""Control group for a process, whose memory limit can be brought close to the usage."""

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
"""Root folder, limit file, usage file and value for "unlimited", of cgroup versions 1 and 2."""


@dataclass(frozen=True)
class Group:
    """Control group of processes."""

    folder: Path
    root: Path
    limit: str
    usage: str
    unlimited: str

    def starting(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Wrap a command to run in the group and, as in a container, see no other group."""
        script = (
            f"echo $$ > {self.folder}/cgroup.procs"
            f' && mount --bind {self.folder} {self.root} && exec "$@"'
        )
        return "unshare", "--mount", "sh", "-c", script, "sh", *command

    def leave(self, share: float) -> None:
        """Limit the group's memory to its usage plus a share of it."""
        used = int((self.folder / self.usage).read_text())
        (self.folder / self.limit).write_text(str(int(used * (1 + share))))

    def free(self) -> None:
        """Remove the limit."""
        (self.folder / self.limit).write_text(self.unlimited)


@contextlib.contextmanager
def group() -> Iterator[Group]:
    """Make a group without a limit; its processes must end before the block does.

    Raises:
        OSError: this user may not make a group.

    """
    root, limit, usage, unlimited = next(one for one in ROOTS if (one[0] / "cgroup.procs").exists())
    folder = root / f"headscope-{os.getpid()}-{free_port()}"
    folder.mkdir()
    try:
        (folder / limit).read_text()
        yield Group(folder, root, limit, usage, unlimited)
    finally:
        folder.rmdir()
