"""grouptrail: the history of Kafka consumer groups, from `__consumer_offsets` into Delta tables."""
