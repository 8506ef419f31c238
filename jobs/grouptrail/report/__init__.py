"""Reports on groups and clusters: timeline and report as HTML files that open offline, and the digest as text.

Owns what a report reads (`*_rows`), how it is arranged (`layout`, `digest`), and where it goes (`page`, `webhook`).
"""
