"""Media types and parts of replies, and predicted bytes of numbers in JSON."""

from __future__ import annotations

from collections.abc import Iterator

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
OCTETS = "application/octet-stream"
FORM = "multipart/form-data"
IMAGE = "image/"
"""Media type of forms, and the beginning of the media types of pictures."""
Part = bytes | memoryview
"""A part of a reply's body: large ones are sent in parts, so that none is copied."""
Unwritten = Iterator[Part]
"""Pieces of a reply's body, which are generated on demand; see `Turns`."""
JSON_BYTES_PER_FLOAT = 15
"""Predicted bytes of a float32 and its comma in JSON, above the measured means (up to 11.8 for
hidden states, 12.7 for unit vectors, 14.1 for the maps of a head)."""
JSON_BYTES_PER_INDEX = 6
"""Predicted bytes of a token's index and its comma in JSON."""
