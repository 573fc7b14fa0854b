"""Runs of the JAX model with torch's weights: the whole model, and each module on torch's own arrays."""
