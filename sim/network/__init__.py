"""Messages over links: queues, shared rates, disturbances, and the chip links that have RTL."""
