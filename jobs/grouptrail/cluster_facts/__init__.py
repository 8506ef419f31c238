"""The job `cluster`: samples brokers, topics, partitions and topics' settings, and writes what has changed.

Owns the comparison of two samples, and the rows that are valid for an interval of time.
"""
