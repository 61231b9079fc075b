"""For courses and authors: the labs, and the scaffold of a strategy."""
