"""Run the jobs: start and stop them, restart them after a fault, keep a second driver out, recover lost checkpoints.

Owns the life of a `grouptrail run` process, with the exporter and the web pages in it, and `doctor` and `rebuild`.
"""
