"""What theory knows of a run: closed forms, predictions, and the gate that holds them to measurement."""
