"""Recorded reference: everything that torch computes for a model on some inputs."""
