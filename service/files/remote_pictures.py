"""Encoder of pictures by a running service, which sends their files in concurrent requests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.files.encoder import Outcome, Refused
from service.files.options import Encoding
from service.files.pictures import read_picture
from service.files.remote import RemoteEncoder

if TYPE_CHECKING:
    from service.files.connection import Connection, RefusedRequest

REQUEST_BYTES = 2**23
"""Maximum bytes of the files of a request, unless a single file has more."""
MOST_FILE_BYTES = 2**28
"""Maximum bytes of a file; the service has a limit of its own."""
WINDOW_CHARACTERS = 2**13
"""Maximum characters of the paths of a window: some 100 pictures."""
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
"""PNG file of one black pixel, in base64."""


class RemotePictures(RemoteEncoder):
    """Encoder by the model of pictures of a service; its texts are paths."""

    trial = PIXEL
    request_size = REQUEST_BYTES

    def __init__(
        self, connection: Connection, encoding: Encoding, say: Callable[[str], None]
    ) -> None:
        """Query the service's properties, and try the options on a picture.

        Args:
            connection: connection to the service.
            encoding: requested output of each picture.
            say: function called with a warning if replies have no fingerprint.

        """
        encoding.check_for_pictures()
        self._first_frame = encoding.first_frame
        super().__init__(connection, encoding, say)
        self.window_characters = WINDOW_CHARACTERS

    def encoder_info(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the properties of a vision tower where there is one, else of the encoder."""
        return info | (info.get("vision") or {})

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """Return the bytes of each file; 1 for a file that does not exist."""
        paths = map(Path, texts)
        return [1 + (path.stat().st_size if path.is_file() else 0) for path in paths]

    def inputs(self, texts: Sequence[str]) -> list[object]:
        """Return pictures in base64 as elements of a request."""
        first_frame = {"first_frame": True} if self._first_frame else {}
        return [{"image": text, **first_frame} for text in texts]

    def refused(self, error: RefusedRequest) -> Refused:
        """Return the rejection of a picture that was sent alone."""
        return Refused.of_picture(error)

    def send(self, places: Sequence[int], texts: Sequence[str]) -> list[tuple[int, Outcome]]:
        """Read the files, and return the outcomes of the pictures."""
        refused: list[tuple[int, Outcome]] = []
        sent: list[tuple[int, str]] = []
        for place, path in zip(places, texts, strict=True):
            data = read_picture(path, MOST_FILE_BYTES)
            if isinstance(data, Refused):
                refused.append((place, data))
            else:
                sent.append((place, base64.b64encode(data).decode()))
        if not sent:
            return refused
        return refused + self.halved([place for place, _ in sent], [text for _, text in sent])
