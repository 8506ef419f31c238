"""Queries with parameters, read by `grouptrail.contracts`."""
