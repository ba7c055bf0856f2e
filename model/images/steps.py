"""Steps in which Pillow opens a picture file, counted before Pillow opens it.

Pillow reads chunks, segments and blocks in Python, decompresses every text of a PNG file, and
copies the EXIF data of a JPEG file for each segment: 10 MB of one pixel took up to 38 s. The count
goes the same way, ends where Pillow ends, and is limited.
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
MOST_TAGS_BYTES = 12 * 65535
"""Maximum bytes of the tags in a directory of EXIF data."""
_STARTS = {
    "PNG": b"\x89PNG\r\n\x1a\n",
    "JPEG": b"\xff\xd8\xff",
    "GIF": b"GIF8",
    "BMP": b"BM",
    "WebP": b"RIFF",
}


def format_of(data: bytes) -> str:
    """Return the name of a file's format; Pillow's is the same in upper case."""
    for name, start in _STARTS.items():
        if data.startswith(start) and (name != "WebP" or data[8:12] == b"WEBP"):
            return name
    raise ImageError(
        "the file is not a PNG, JPEG, WebP, GIF or BMP picture; convert it to one of them"
    )


def count_steps(data: bytes) -> int:
    """Return the number of steps in which Pillow opens a file, which may be damaged.

    Raises:
        ImageError: the file takes too many steps, or is of another format.

    """
    name, steps, most = format_of(data), 0.0, MOST_STEPS + len(data) // BYTES_A_STEP
    with contextlib.suppress(IndexError):  # the file is truncated, which Pillow finds
        for cost in _COSTS[name](data):
            steps += cost
            if steps > most:
                raise ImageError(
                    f"the {name} file has too many parts or too large metadata: opening it takes "
                    f"more than {most} steps; save it again without metadata, as PNG or JPEG"
                )
    return round(steps)


def _png(data: bytes) -> Iterator[float]:
    """Yield the steps of each chunk; 1 MB of text, the most of a chunk, takes 512 to decompress."""
    place = 8
    while is_cid(name := data[place + 4 : place + 8]) and name != b"IEND":
        start, end = place + 8, place + 8 + int.from_bytes(data[place : place + 4])
        yield 1
        if name in (b"eXIf", b"zTXt", b"iCCP", b"iTXt"):
            if name == b"eXIf":
                yield min(end - start, MOST_TAGS_BYTES) / 192
            elif name == b"iTXt" and data[data.find(b"\0", start, end) + 1] == 0:
                yield len(data[start:end]) / 1024
            else:  # deflate shrinks to a thousandth at most
                yield min(end - start, 1024) / 2
        place = end + 4


def _jpeg(data: bytes) -> Iterator[float]:
    """Yield the steps of each segment before the first scan, and of bytes between segments."""
    place = 2
    while (marker := data[place] << 8 | data[place + 1]) != 0xFFDA:  # start of scan
        if marker < 0xFF00 or marker == 0xFFFF:
            yield 1 / 16
            place += 1
        elif marker == 0xFF00 or (marker in MARKER and MARKER[marker][2] is None):
            yield 1 / 8
            place += 2
        elif marker in MARKER:
            length = int.from_bytes(data[place + 2 : place + 4])
            end = place + 2 + max(2, length)
            yield 1
            if marker == 0xFFE1 and data.startswith(b"Exif\0\0", place + 4):
                yield length / 48  # 4 tags; the segments before are copied, too
            elif marker == 0xFFED:
                yield data.count(b"8BIM", place, end)  # Photoshop's resources
            elif marker == 0xFFDB:
                yield length / 64  # quantisation tables
            place = end
        else:
            return


def _gif(data: bytes) -> Iterator[float]:
    """Yield the steps of blocks before the second frame: a quarter, and an eighth a sub-block."""
    place, images = 13 + _palette_bytes(data[10]), 0
    while data[place] != ord(";"):
        yield 1 / 4
        if data[place] == ord("!"):
            label, place = data[place + 1], place + 2
            if label != 0xFE:  # Pillow reads sub-blocks of other extensions beyond an empty one
                first = data[place + 1 : place + 1 + data[place]]
                loop = label == 0xFF and not images and first.startswith(b"NETSCAPE2.0")
                for _ in range(2 if loop else 1):
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
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        tags = min(size, MOST_TAGS_BYTES) if data.startswith(b"EXIF", place) else 0
        yield 1 + tags / 192
        place += 8 + size + size % 2


def _bmp(data: bytes) -> Iterator[float]:
    """Yield the steps of run-length encoded pixels, which Pillow decodes in Python."""
    if int.from_bytes(data[14:18], "little") >= 40 and data[30] in (1, 2):
        yield len(data) / 64


_COSTS = {"PNG": _png, "JPEG": _jpeg, "GIF": _gif, "WebP": _webp, "BMP": _bmp}
"""Steps of a file's parts, by the name of the format."""
