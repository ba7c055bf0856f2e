"""`python -m service`, the same as `headscope`."""

import sys

from service.cli import main

sys.exit(main())
