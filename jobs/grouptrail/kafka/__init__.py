"""Kafka clients: admin requests, offsets and records of the brokers. The only room that knows one."""
