"""Record the replies to all requests anew: `python -m trials.recording FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from trials.recording.replies import record, write

print(f"{write(record(), Path(sys.argv[1]))} requests")
