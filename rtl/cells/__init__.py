"""Small circuits that others are made of: queues, semaphores, arbiters, credits, arithmetic, memories."""
