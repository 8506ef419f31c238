"""The log-offsets job: samples log start, last stable and log end offsets of partitions into `log_offsets`.

Owns the Spark data source `kafka_log_offsets`, and the choice of the partitions to sample.
"""
