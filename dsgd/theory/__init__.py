"""Theory of a run: closed forms, predictions, and the gate that tests them against measurements."""
