"""What happens inside a model while it runs: calls, their arrays, and the source line of an error."""
