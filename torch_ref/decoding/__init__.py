"""Logits -> tokens."""
