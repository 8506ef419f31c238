"""The polling job, for clusters whose topic may not be read: groups are polled, their changes written as records.

It runs instead of decode and writes the same tables. Owns which broker a poll asks for what (`poller`), and how the
difference between two polls becomes records (`changes`).
"""
