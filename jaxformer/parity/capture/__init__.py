"""What happens inside of a model while it runs: calls, their arrays, and where the code of an error stands."""
