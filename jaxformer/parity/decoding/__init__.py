"""Decoding on both sides: the logits of each step with a cache, and the tokens that are written."""
