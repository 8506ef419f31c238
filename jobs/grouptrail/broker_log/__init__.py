"""The brokers' own log: lines of group coordinators, and the events of consumer groups in them."""
