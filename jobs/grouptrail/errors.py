"""The base class of all errors with a message for users."""


class GrouptrailError(Exception):
    """Its message is one line for the person on call: what is wrong, then what to do about it."""


def first_cause(error: Exception) -> str:
    """Return the first line of an exception of Python, or of Java as py4j passes it on."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first_line = lines[0]
    if len(lines) > 1 and lines[1].startswith(": "):  # py4j's line, then Java's with its class
        first_line = lines[1].removeprefix(": ").partition(": ")[2] or lines[1]
    return first_line[:300]
