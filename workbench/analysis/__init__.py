"""Analyses of route traces and events: frames in, frames or figures out."""
