"""What a run can resume from: its state as the bytes of one file, and when it is saved."""
