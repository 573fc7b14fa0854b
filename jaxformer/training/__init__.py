"""Losses, optimizers, schedules, the train step, and runs."""
