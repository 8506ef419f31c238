"""A real Kafka and made-up groups: what `make demo`, the broker tests and the bench run against."""
