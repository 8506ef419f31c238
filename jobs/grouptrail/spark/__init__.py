"""Spark: the Java and jars it runs on, the session, the streams. Only this package starts a JVM."""
