"""The log-offsets job: samples the start and end offsets of partitions' logs."""
