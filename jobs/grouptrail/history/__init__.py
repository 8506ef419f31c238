"""The history job: what a group's records, in log order, say of its generations, states, members and partitions."""
