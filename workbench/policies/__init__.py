"""Whom to evict and admit. No tensors."""
