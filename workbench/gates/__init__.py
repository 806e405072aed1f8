"""Experiments: configuration in, result folder out."""
