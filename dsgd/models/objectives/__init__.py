"""The loss of a torch module on one flat vector, by one process or by a group of ranks; and a quadratic."""
