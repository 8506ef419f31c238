"""The root of every error grouptrail raises on purpose."""


class GrouptrailError(Exception):
    """Its message is one line for the person on call: what is wrong, then what to do about it."""


def first_cause(error: Exception) -> str:
    """One line of what Python or, by way of py4j, Java raised."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first_line = lines[0]
    if len(lines) > 1 and lines[1].startswith(": "):  # py4j's line, then Java's with its class
        first_line = lines[1].removeprefix(": ").partition(": ")[2] or lines[1]
    return first_line[:300]
