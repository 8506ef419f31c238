"""The decode job: records of `__consumer_offsets` to rows of the decoded tables."""
