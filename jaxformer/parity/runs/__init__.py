"""The JAX model with torch's weights: as a whole, and each module on torch's own arrays."""
