"""Refusals: whatever comes from outside is checked before it is used, and refused in one line."""
