"""Losses, optimizers, schedules and a short training loop."""
