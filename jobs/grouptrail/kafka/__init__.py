"""Kafka clients: settings, admin requests, offsets, single records. Other packages open no connection to a broker."""
