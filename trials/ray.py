"""Trials of Ray on this machine: replicas under Ray Serve, a corpus by Ray Data; `make ray`."""

from __future__ import annotations

from trials import ray_change, ray_corpus, ray_serve
from trials.gates import main

if __name__ == "__main__":
    main(__doc__, serve=ray_serve.run, change=ray_change.run, corpus=ray_corpus.run)
