"""Quality: the tables held against their expectations."""
