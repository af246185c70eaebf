"""Small circuits that others are made of: queues, semaphores, arithmetic, memories."""
