"""Conversion of weights between frameworks by declarative rules, each with an exact inverse."""
