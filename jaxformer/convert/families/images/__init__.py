"""Families of encoders of images, and of pairs of images and texts."""
