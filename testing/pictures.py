"""Files of pictures in many forms, and a colour profile, for tests."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ORIENTATION = 0x0112
"""EXIF tag."""


def pixels(width: int = 61, height: int = 47) -> NDArray[np.uint8]:
    """Return `[height, width, 3]`: a gradient with noise."""
    noise = np.random.default_rng(7).integers(0, 64, (height, width, 3))
    ramp = np.linspace(0, 191, width)[None, :, None] * np.array([1, 0.5, 0.2])
    return (ramp + noise).astype(np.uint8)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return a file of Pillow's format."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, bits: int, colour: int, raw: bytes = b"") -> bytes:
    """Return a PNG file of one IDAT chunk."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def turned(orientation: int, kind: str = "JPEG") -> bytes:
    """Return a file with an EXIF orientation."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return saved(Image.fromarray(pixels()), kind, exif=exif)


def kinds() -> dict[str, bytes]:
    """Return files of the kinds that transformers' image processors accept, by name."""
    rgb = Image.fromarray(pixels())
    alpha = Image.fromarray(pixels()[..., 0].copy())
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    palette = rgb.quantize(32)
    clear = bytes([0, 128, *[255] * 30])
    return {
        "RGBA": saved(rgba, "PNG"),
        "palette": saved(palette, "PNG"),
        "palette with transparency": saved(palette, "PNG", transparency=clear),
        "grey": saved(rgb.convert("L"), "PNG"),
        "grey with alpha": saved(rgba.convert("LA"), "PNG"),
        "black and white": saved(rgb.convert("1"), "BMP"),
        "16 bits a channel": png(61, 47, 16, 2, rows_of_16_bits(pixels())),
        "EXIF 6": turned(6),
        "EXIF 5 in WebP": turned(5, "WEBP"),
        "1 × 1": saved(rgb.resize((1, 1)), "PNG"),
        "10,000 × 3": saved(Image.fromarray(pixels(10_000, 3)), "PNG"),
        "3 × 10,000": saved(Image.fromarray(pixels(3, 10_000)), "PNG"),
        "WebP": saved(rgb, "WEBP", quality=60),
        "progressive JPEG": saved(rgb, "JPEG", progressive=True),
        "GIF": saved(rgb, "GIF"),
        "BMP": saved(Image.fromarray(pixels(500, 20)), "BMP"),
    }


def crowded(size: int) -> dict[str, bytes]:
    """Return files of one pixel and some bytes of tiny or compressed parts, by their parts."""
    dot = Image.new("RGB", (1, 1))
    plain_png, plain_jpeg, plain_gif = (saved(dot, kind) for kind in ("PNG", "JPEG", "GIF"))
    bitmap = saved(dot.convert("P"), "BMP")
    text = zlib.compress(bytes(1_000_000))
    segment = b"Exif\0\0II*\0\x08\0\0\0\0\0" + bytes(680)
    tag = struct.pack("<HHII", 1, 4, 1, 1)

    def filled(data: bytes, place: int, part: bytes) -> bytes:
        return data[:place] + part * (size // len(part)) + data[place:]

    chunks = {
        "PNG texts": _chunk(b"tEXt"),
        "PNG unknown chunks": _chunk(b"abCd"),
        "PNG profiles": _chunk(b"iCCP", b"a\0\0" + text),
        "PNG texts without a keyword": _chunk(b"zTXt", b"\0\0" + text),
        "PNG texts that are not UTF-8": _chunk(
            b"iTXt", b"a\0\1\0\0\0" + zlib.compress(b"\xff" * 1_000_000)
        ),
        "PNG tags": _chunk(b"eXIf", b"II*\0\x08\0\0\0\xff\xff" + tag * 65535),
    }
    segments = {
        "JPEG comments": b"\xff\xfe\0\2",
        "JPEG application data": b"\xff\xe3\0\2",
        "JPEG EXIF": b"\xff\xe1" + struct.pack(">H", 2 + len(segment)) + segment,
        "JPEG fill bytes": b"\xff",
        "JPEG tables": b"\xff\xdb\0\x43\0" + b"\1" * 64,
    }
    blocks = {
        "GIF comments": b"!\xfe\1a\0",
        "GIF sub-blocks": b"!\xfe" + b"\1a" * 2048 + b"\0",
        "GIF loops": b"!\xff\x0bNETSCAPE2.0\0!\1\xfe" + bytes(31) + b"\1\xff" * 2048 + b"\0",
        "GIF junk": b"\0",
    }
    return {
        **{name: filled(plain_png, 33, part) for name, part in chunks.items()},
        "PNG empty pixels": filled(plain_png, plain_png.index(b"IEND") - 4, _chunk(b"IDAT")),
        **{name: filled(plain_jpeg, 2, part) for name, part in segments.items()},
        **{
            name: filled(plain_gif, plain_gif.index(b",", 13), part)
            for name, part in blocks.items()
        },
        "BMP runs": bitmap[:30] + b"\1" + bitmap[31:1078] + b"\0\0" * (size // 2),
    }


def _chunk(name: bytes, data: bytes = b"") -> bytes:
    """Return a chunk of a PNG file."""
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def rows_of_16_bits(values: NDArray[np.uint8]) -> bytes:
    """Return the rows of a PNG with samples of 16 bits whose upper bytes are the values."""
    samples = values.astype(">u2") * 256 + 77
    return b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)


def grey_of_16_bits() -> bytes:
    """Return a grey PNG of 16 bits whose upper bytes are the red values of `pixels`."""
    return png(61, 47, 16, 0, rows_of_16_bits(pixels()[..., :1]))


def animated(kind: str) -> bytes:
    """Return a file of two frames; the second is half as bright."""
    frames = [Image.fromarray(pixels() // n) for n in (1, 2)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


def cmyk(profile: bytes | None) -> bytes:
    """Return a JPEG of 16 × 16 pixels with full cyan and no other ink."""
    image = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    return saved(image, "JPEG", quality=100, icc_profile=profile)


def grey_profile() -> bytes:
    """Return a CMYK profile that prints full cyan as CIE L* = 128 / 2.55, and black as 0.

    Format: ICC.1:2001-04, a device profile with one `lut8Type` to CIELAB.
    """
    ramp = bytes(range(256))
    white, cyan, black = (bytes([lightness, 128, 128]) for lightness in (255, 128, 0))
    colours = (white + black) * 4 + (cyan + black) * 4  # the last ink varies fastest
    identity = struct.pack(">9i", *(65536 * (n % 4 == 0) for n in range(9)))
    table = b"mft1" + bytes([0, 0, 0, 0, 4, 3, 2, 0]) + identity + ramp * 4 + colours + ramp * 3
    tags = struct.pack(">I4sII", 1, b"A2B0", 144, len(table))
    header = struct.pack(
        ">I4sI4s4s4s12x4s", 144 + len(table), b"", 0x02100000, b"prtr", b"CMYK", b"Lab ", b"acsp"
    )
    illuminant = struct.pack(">3I", 0xF6D6, 0x10000, 0xD32D)
    return header + bytes(28) + illuminant + bytes(48) + tags + table
