"""Long runs of the pipeline: `make soak` injects faults, `make fleet` runs healthy groups and expects no alert."""
