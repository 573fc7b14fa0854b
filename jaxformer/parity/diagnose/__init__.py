"""Search for the cause of a difference: mutations of torch's code, and formulas tried on the recorded values."""
