"""Benchmarks of the pipeline, for `make bench`."""
