"""One run: its loop, evaluations, resuming, replaying; checkpoints/; predict/: which formulas concern it."""
