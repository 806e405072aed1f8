"""Qwen4Exp in MLX. No I/O, no clocks, no policy."""
