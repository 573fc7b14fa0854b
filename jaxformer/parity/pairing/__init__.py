"""Pairing of JAX tensors, modules and calls with torch's."""
