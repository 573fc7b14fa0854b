"""Families of encoders of texts: BERT, and what was made of it."""
