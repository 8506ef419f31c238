"""Kafka clients: settings, admin requests, offsets, single records. No other package imports kafka-python."""
