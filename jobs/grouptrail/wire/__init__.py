"""Bytes to values and back: the records of `__consumer_offsets`. Knows neither Spark nor Kafka clients."""
