"""Spark: how it is started (Java, jars, session) and how its streams are. The only room that knows."""
