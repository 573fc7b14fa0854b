"""Weights between frameworks: declarative rules, each with an exact inverse."""
