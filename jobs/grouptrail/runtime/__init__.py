"""Runtime: run the jobs, stop them, and restart or recover them."""
