"""Excited parameters and adversarial inputs, which hide no bug."""
