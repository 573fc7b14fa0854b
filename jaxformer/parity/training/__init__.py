"""Training of both sides, step beside step."""
