"""The three ways in: the topic, the admin API (polling) and log segments, all as the topic's records."""
