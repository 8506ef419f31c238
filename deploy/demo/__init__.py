"""A real Kafka and simulated consumer groups, for `make demo`, the broker tests and the benchmarks."""
