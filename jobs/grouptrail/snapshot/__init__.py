"""The newest figures of each cluster, in memory: what the exporter and the web pages share.

    consumer_lag, group_states, generations, rebalances, offset_commits, ingest_progress
        --totals, large_sample--> reader --> Snapshot, as immutable Arrow tables
    consumer_lag, published by a lag job of this process --/

`state` is what the pages learn about a cluster: its snapshot, its jobs, and why the figures are not current.
"""
