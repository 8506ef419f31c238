"""Bytes to values and back: the record layouts of `__consumer_offsets` and their interpreter. Imports no client."""
