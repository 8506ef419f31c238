"""Java's classes, each looked up once: for every part of a dotted name py4j searches the class path."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM by its full name."""
    return _java_class(spark._jvm, name)


@functools.cache
def _java_class(jvm: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), jvm)
