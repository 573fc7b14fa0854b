"""Validation: everything that comes from outside is checked before use, and refused with a one-line message."""
