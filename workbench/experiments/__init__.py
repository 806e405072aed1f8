"""Runs of the workbench: configuration in, result folder out."""
