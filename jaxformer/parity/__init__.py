"""The proof that two implementations agree: what equal means, inputs that leave nothing unseen, bugs that must be noticed."""
