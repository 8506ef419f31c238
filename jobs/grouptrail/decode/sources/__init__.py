"""Other sources than the topic itself: the admin API (polling) and log segments, as records of the topic."""
