"""Comparison by statistics: of a reference that is too large to be kept as tensors, and of a JAX model with its own weights.

events     observer of a run, on either side: the statistics of what goes into each call and of what comes out
summary    the statistics of a reference, in memory and in a folder
check      the comparison of a JAX model with them
"""
