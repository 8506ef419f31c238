"""Other sources than the topic itself: log segments, as records of the topic."""
