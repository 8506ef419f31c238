"""Bytes to values and back: the records of `__consumer_offsets`. Uses neither Spark nor Kafka clients."""
