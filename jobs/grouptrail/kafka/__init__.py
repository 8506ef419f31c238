"""Kafka clients: admin requests, offsets and records of the brokers; no other room uses a Kafka client."""
