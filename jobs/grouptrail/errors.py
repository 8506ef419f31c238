"""The root of every error grouptrail raises on purpose."""


class GrouptrailError(Exception):
    """Its message is one line for the person on call: what is wrong, then what to do about it."""
