"""Which modules diverge, and what each check says."""
