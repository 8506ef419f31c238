"""The log-offsets job: samples of where the logs begin and end that groups commit to."""
