"""The exporter: Prometheus metrics from the tables. It knows neither Spark nor decoding."""
