"""Operators: each proposes mutations of torch's code, which a replay runs until one of them gives jax's array."""
