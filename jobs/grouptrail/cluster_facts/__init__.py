"""The job `cluster`: samples brokers, topics, partitions and topics' settings, and writes what has changed.

Owns the comparison of two samples, and the rows that are valid for an interval of time. One more table needs a
contract that uses `_observed`, its name and key in `sample.py`, its rows in `sampler.py`, and its name in `jobs.py`.
"""
