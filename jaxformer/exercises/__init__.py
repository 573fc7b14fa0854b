"""Exercises: ports with one planted bug each, which a learner mends and the comparison judges."""
