"""Honest comparisons: cohorts of four arms A1 B1 B2 A2, what makes one invalid, and when a series of them is a verdict."""
