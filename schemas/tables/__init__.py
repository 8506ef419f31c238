"""Table contracts, read by `grouptrail.contracts`."""
