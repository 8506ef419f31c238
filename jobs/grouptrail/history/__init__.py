"""The history job: reconstructs generations, states, memberships, ownership and rebalances from a group's records.

Owns the fold from records to rows (`fold`, without I/O), the evidence for causes, and the tables of the history.
"""
