"""One run as a value: the loop that follows a strategy, evaluation, recovery, replay."""
