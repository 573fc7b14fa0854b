"""The proof that two implementations agree: what equal means, inputs that leave nothing unseen, and bugs that must be noticed."""
