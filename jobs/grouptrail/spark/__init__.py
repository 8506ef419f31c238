"""Spark: Java, jars, the session and its streams; no other room starts Spark."""
