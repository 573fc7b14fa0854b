"""Comparison of the log-probabilities that a trainer and a sampler give to the same ids, and the causes of a difference."""
