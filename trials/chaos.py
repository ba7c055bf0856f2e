"""All trials of load, faults and concurrency."""

from __future__ import annotations

from trials import (
    batching,
    bodies,
    disconnects,
    explanations,
    faults,
    loads,
    mixups,
    models,
    neighbours,
    overload,
    pairs,
    picture_loads,
    saturation,
    stalls,
    stops,
    swaps,
)
from trials.gates import Trial, main

TRIALS: dict[str, Trial] = {
    "overload": overload.run,
    "mixups": mixups.run,
    "models": models.run,
    "batching": batching.run,
    "faults": faults.run,
    "stops": stops.run,
    "swaps": swaps.run,
    "loads": loads.run,
    "disconnects": disconnects.run,
    "stalls": stalls.run,
    "neighbours": neighbours.run,
    "at_once": neighbours.run_at_once,
    "pairs": pairs.run,
    "picture_loads": picture_loads.run,
    "explanations": explanations.run,
    "saturation": saturation.run,
    "bodies": bodies.run,
}

if __name__ == "__main__":
    main(__doc__, **TRIALS)
