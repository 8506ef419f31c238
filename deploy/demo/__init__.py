"""What `make demo` runs: groups of every kind on a real Kafka, watched by the pipeline."""
