"""Stub with a wrong prediction: `/encode` reserves a tenth of the bytes that its reply needs."""

from __future__ import annotations

import sys

from service.api.native import encode_request
from trials.stub import main

if __name__ == "__main__":
    encode_request.JSON_BYTES_PER_FLOAT = 1
    sys.exit(main())
