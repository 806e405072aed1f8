"""Frames in, frames out: what routes and events say."""
