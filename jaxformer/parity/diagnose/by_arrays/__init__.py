"""Explainers that need only the arrays of both sides, not torch's code: all there is for a reference from a dump."""
