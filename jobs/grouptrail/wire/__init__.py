"""Bytes to values and back: the layouts of coordinators' records and their interpreter. Imports no client."""
