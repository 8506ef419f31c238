"""Runtime: runs the jobs, stops them, and puts them back on their feet."""
