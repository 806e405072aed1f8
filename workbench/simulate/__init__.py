"""Replays of route traces through the runtime's own policies and scheduling. No MLX, no threads; results are simulated."""
