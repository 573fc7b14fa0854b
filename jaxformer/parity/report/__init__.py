"""What a comparison found, and how people look at it."""
