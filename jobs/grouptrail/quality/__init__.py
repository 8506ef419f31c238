"""Quality: validates the tables against their expectations."""
