"""Measurements of the comparison itself; those of speed are `jaxformer bench`."""
