"""The exporter: Prometheus metrics from the tables. It imports neither Spark nor decoding.

    Snapshot --families--> Family, … --governor--> those to serve --text--> /metrics

`grouptrail serve` reads the tables only. A job that computes lag runs the exporter in its own process and passes the
newest sample directly:

    from grouptrail.exporter.service import Exporter

    with Exporter(clusters, web) as exporter:   # listens on exporter.listen; raises ExporterError where it cannot
        while sampling:
            exporter.publish(cluster, lag_rows) # a pyarrow Table: one sample, with the columns of consumer_lag

`publish` may be called from any thread and does not block: the rows are served once the rest of the snapshot is read.
"""
