"""The decode job: turn records of `__consumer_offsets` into rows of the decoded tables."""
