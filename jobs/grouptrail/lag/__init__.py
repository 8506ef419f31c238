"""The lag job: each group's lag in offsets and in seconds, and its verdict, at each sample of the logs.

Owns the rules of lag and of verdicts, the tables `consumer_lag` and `committed_offsets`, and `grouptrail backtest`.
It does not know the exporter: the runtime passes it a function that publishes rows.
"""
