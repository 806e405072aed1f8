"""Who goes first: tickets, queues, slots, lanes. No tensors, no threads, no files."""
