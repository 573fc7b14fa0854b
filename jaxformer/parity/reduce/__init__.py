"""Smallest call of the JAX model that differs from torch's, as a test file that runs by itself.

replay            one call of a JAX model on torch's inputs, with torch's weights
source            Python expressions of a model, of its settings and of the function that calls it
constructor       arguments with which a class makes a module again
failing           choice of the call, and the two files
"""
