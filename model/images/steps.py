"""Steps that Pillow takes to open a picture file, counted before Pillow opens it.

Pillow reads chunks, segments and blocks one by one in Python, decompresses every text of a PNG
file, and copies the EXIF data of a JPEG file for each further segment: a file of one pixel and
10 MB took up to 38 s. The count follows the same way, stops where Pillow stops, and ends at its
limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

from PIL.JpegImagePlugin import MARKER
from PIL.PngImagePlugin import is_cid

from model.errors import ImageError

MOST_STEPS, BYTES_A_STEP = 4096, 1024
"""Maximum steps of a file, and number of its bytes for which one more is allowed. A step takes at
most some 8 µs. Encoders write pixels in chunks of at least 4 KiB; a camera's file has some hundred
steps."""
STEP_BYTES = 10_000
"""Maximum bytes of memory of a step: 1 MB of text is 512 steps, and takes 5 bytes a character."""
NAMES = {"PNG": "PNG", "JPEG": "JPEG", "GIF": "GIF", "BMP": "BMP", "WEBP": "WebP"}
"""Usual name of each format by Pillow's name."""
_START_OF_SCAN, _APP1, _APP13, _DQT = 0xFFDA, 0xFFE1, 0xFFED, 0xFFDB


def count_steps(data: bytes, kind: str) -> int:
    """Return the number of steps in which Pillow opens a file.

    Args:
        data: the file, which may be damaged.
        kind: Pillow's name of its format.

    Raises:
        ImageError: the file takes too many steps.

    """
    steps, most = 0.0, MOST_STEPS + len(data) // BYTES_A_STEP
    with contextlib.suppress(IndexError):  # the file is truncated, which Pillow finds
        for cost in _COSTS[kind](data):
            steps += cost
            if steps > most:
                raise ImageError(
                    f"the {NAMES[kind]} file has too many parts or too large metadata: opening it "
                    f"takes more than {most} steps; save it again without metadata, as PNG or JPEG"
                )
    return round(steps)


def _png(data: bytes) -> Iterator[float]:
    """Yield the steps of each chunk; 1 MB of text, the most of a chunk, takes 512 to decompress."""
    place = 8
    while is_cid(name := data[place + 4 : place + 8]) and name != b"IEND":
        start, end = place + 8, place + 8 + int.from_bytes(data[place : place + 4])
        yield 1
        if name == b"eXIf":
            yield _tags(data[start:end]) / 4
        elif name in (b"zTXt", b"iCCP") or (
            name == b"iTXt" and data[data.find(b"\0", start, end) + 1]
        ):
            yield min(end - start, 1024) / 2  # deflate shrinks to a thousandth at most
        elif name == b"iTXt":
            yield len(data[start:end]) / 1024
        place = end + 4


def _jpeg(data: bytes) -> Iterator[float]:
    """Yield the steps of each segment before the first scan, and of each byte between segments."""
    place = 2
    while True:
        marker = data[place] << 8 | data[place + 1]
        if marker < 0xFF00 or marker == 0xFFFF:
            yield 1 / 16
            place += 1
        elif marker == 0xFF00 or (marker in MARKER and MARKER[marker][2] is None):
            yield 1 / 8
            place += 2
        elif marker == _START_OF_SCAN or marker not in MARKER:
            return
        else:
            yield 1
            length = int.from_bytes(data[place + 2 : place + 4])
            end = place + 2 + max(2, length)
            if marker == _APP1 and data.startswith(b"Exif\0\0", place + 4):
                yield length / 48  # 4 tags; the segments before are copied, too
            elif marker == _APP13:
                yield data.count(b"8BIM", place, end)  # Photoshop's resources
            elif marker == _DQT:
                yield length / 64  # a table
            place = end


def _gif(data: bytes) -> Iterator[float]:
    """Yield the steps of blocks before the second frame: a quarter, and an eighth a sub-block."""
    place, images = 13 + _palette_bytes(data[10]), 0
    while data[place] != ord(";"):
        yield 1 / 4
        if data[place] == ord("!"):
            label, place = data[place + 1], place + 2
            if label != 0xFE:  # Pillow reads sub-blocks of other extensions beyond an empty one
                loop = not images and label == 0xFF
                first = data[place + 1 : place + 1 + data[place]]
                for _ in range(2 if loop and first.startswith(b"NETSCAPE2.0") else 1):
                    place += 1 + data[place]
            place = yield from _sub_blocks(data, place)
        elif data[place] == ord(","):
            if images:
                return
            images += 1
            place = yield from _sub_blocks(data, place + 11 + _palette_bytes(data[place + 9]))
        else:
            place += 1


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 128 else 0


def _sub_blocks(data: bytes, place: int) -> Generator[float, None, int]:
    """Yield the steps of sub-blocks; return the place after their end."""
    while size := data[place]:
        place += 1 + size
        yield 1 / 8
    return place + 1


def _webp(data: bytes) -> Iterator[float]:
    """Yield the steps of each chunk of the RIFF container."""
    place, end = 12, min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while place + 8 <= end:
        yield 1
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        if data.startswith(b"EXIF", place):
            yield _tags(data[place + 8 : place + 8 + size]) / 4
        place += 8 + size + size % 2


def _bmp(data: bytes) -> Iterator[float]:
    """Yield the steps of run-length encoded pixels, which Pillow decodes in Python."""
    if int.from_bytes(data[14:18], "little") >= 40 and data[30] in (1, 2):
        yield len(data) / 128


def _tags(exif: bytes) -> int:
    """Return the number of tags in the first directory of EXIF data (TIFF 6.0, or BigTIFF)."""
    tiff = exif.removeprefix(b"Exif\0\0").removeprefix(b"Exif\0\0")
    order = "little" if tiff.startswith(b"II") else "big"
    big = 43 in tiff[2:4]
    start = int.from_bytes(tiff[8:16] if big else tiff[4:8], order)
    count = int.from_bytes(tiff[start : start + (8 if big else 2)], order)
    return min(count, len(tiff) // 12)


_COSTS = {"PNG": _png, "JPEG": _jpeg, "GIF": _gif, "WEBP": _webp, "BMP": _bmp}
"""Steps of a file's parts, by Pillow's name of the format."""
