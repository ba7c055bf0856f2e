"""Zero the machine code of other chips in a CUDA library, so that it compresses.

    python slim.py LIBRARY ARCHITECTURE        for example 90, compute capability 9.0

The driver loads the chip's own code. A fat binary is a header (magic, version, header's size, size)
and parts, each with a header (kind, version, header's size, size; the architecture at byte 28).
"""

import mmap
import struct
import sys
from pathlib import Path

MAGIC, MACHINE_CODE = b"\x50\xed\x55\xba", 2


def slim(library: Path, architecture: int) -> int:
    """Zero the code of all other architectures, and return the number of zeroed bytes."""
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        zeroed = at = 0
        while (at := data.find(MAGIC, at)) >= 0:
            header, size = struct.unpack_from("<HQ", data, at + 6)
            at, end = at + (16 if header == 16 else 4), at + header + size
            while header == 16 and at < end <= len(data):
                kind, _, of_part, length = struct.unpack_from("<HHIQ", data, at)
                if not 32 <= of_part <= 512:  # not a part: the magic was found by chance
                    break
                (own,) = struct.unpack_from("<I", data, at + 28)
                if kind == MACHINE_CODE and own != architecture:
                    data[at + of_part : at + of_part + length] = bytes(length)
                    zeroed += length
                at += of_part + length
        return zeroed


if __name__ == "__main__":
    print(f"zeroed {slim(Path(sys.argv[1]), int(sys.argv[2])):,} bytes")
