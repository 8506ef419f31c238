"""What the tests share: brokers, clients, sample warehouses, and readers that do not trust the writer."""
