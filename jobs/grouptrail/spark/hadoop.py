"""Small files on any Hadoop file system: the checkpoints may be in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grouptrail.spark.classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A file in them is there once it is closed, and there is no renaming.
_OBJECT_STORES = ("s3", "s3a", "gs")


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return a file's text, decoded as Latin-1 if it is not UTF-8; None if there is no such file.

    Of a local file that does not match its checksum the text is empty.
    """
    from py4j.protocol import Py4JJavaError

    files, place = _place(spark, path)
    if not files.exists(place):
        return None
    stream = files.open(place)
    try:
        content = bytes(java_class(spark, "org.apache.commons.io.IOUtils").toByteArray(stream))
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "ChecksumException":
            raise
        return ""
    finally:
        stream.close()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write or replace a file, and create the folders above it."""
    files, place = _place(spark, path)
    stream = files.create(place, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def write_whole(spark: SparkSession, path: str, text: str) -> None:
    """Write a new file that is never there in part: under another name first."""
    folder, name = path.rsplit("/", 1)
    unfinished = f"{folder}/.{name}.tmp"
    write_text(spark, unfinished, text)
    if not rename(spark, unfinished, path):
        raise OSError(f"{unfinished} cannot be renamed")


def create(spark: SparkSession, path: str, text: str) -> None:
    """Write a new file that is never there in part, unless there is one."""
    from py4j.protocol import Py4JJavaError

    files, place = _place(spark, path)
    try:
        if files.getScheme() in _OBJECT_STORES:
            # S3A then has the store refuse a second one; elsewhere the option is unknown, and ignored.
            builder = files.createFile(place).overwrite(False).opt("fs.option.create.conditional.overwrite", True)
            stream = builder.build()
            stream.write(bytearray(text.encode()))
            stream.close()
        else:
            write_whole(spark, path, text)
    except (Py4JJavaError, OSError):
        if not files.exists(place):
            raise


def names(spark: SparkSession, folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    files, place = _place(spark, folder)
    return [status.getPath().getName() for status in files.listStatus(place)] if files.exists(place) else []


def rename(spark: SparkSession, path: str, new_path: str) -> bool:
    """Rename a file or folder; return False if it does not exist."""
    files, place = _place(spark, path)
    return bool(files.exists(place) and files.rename(place, _path(spark, new_path)))


def delete(spark: SparkSession, path: str) -> None:
    """Delete a file if it exists."""
    files, place = _place(spark, path)
    files.delete(place, False)


def _place(spark: SparkSession, path: str) -> tuple[Any, Any]:
    place = _path(spark, path)
    return place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), place


def _path(spark: SparkSession, path: str) -> Any:
    return java_class(spark, "org.apache.hadoop.fs.Path")(path)
