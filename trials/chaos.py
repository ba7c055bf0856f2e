"""Every trial of load, faults and concurrency."""

from __future__ import annotations

from trials import company, disconnects, faults, mixups, overload, stalls, stops
from trials.gates import Trial, main

TRIALS: dict[str, Trial] = {
    "overload": overload.run,
    "mixups": mixups.run,
    "company": company.run,
    "faults": faults.run,
    "stops": stops.run,
    "disconnects": disconnects.run,
    "stalls": stalls.run,
}

if __name__ == "__main__":
    main(__doc__, **TRIALS)
