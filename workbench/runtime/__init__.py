"""Ties model, scheduling and readers together; yields one record a token."""
