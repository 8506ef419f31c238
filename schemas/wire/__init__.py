"""Record layouts, read by `grouptrail.wire.layout`."""
