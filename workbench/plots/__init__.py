"""Frames in, figures out. Every figure names the evidence it rests on."""
