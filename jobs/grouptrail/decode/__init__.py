"""The decode job: records of `__consumer_offsets` become rows of the decoded tables and of `ingest_progress`.

Owns how a record is decoded, how a micro-batch is written exactly once (`writer`), which batch was incomplete after a
crash, and the sources of records beside the topic (`sources/`): log segments.
"""
