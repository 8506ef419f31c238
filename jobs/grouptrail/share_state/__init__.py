"""The job `share-state`: the records of `__share_group_state`, where share groups' progress is stored (KIP-932)."""
