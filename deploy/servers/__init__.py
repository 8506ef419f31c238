"""Real servers without Docker on loopback: Kafka, Spark, Prometheus, an object store, and the pipeline itself."""
