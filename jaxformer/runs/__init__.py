"""A run on disk: its folder, its lock, its checkpoints, its metrics."""
