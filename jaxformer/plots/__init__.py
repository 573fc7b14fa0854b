"""Pictures of arrays, runs and reports: each function takes arrays and returns a figure, which `style.write` saves."""
