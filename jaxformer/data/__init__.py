"""Text -> batches."""
