"""Runs on disk: folder, lock, checkpoints and metrics."""
