"""Contracts as data: record layouts, tables and views. Read them through `grouptrail.contracts` only."""
