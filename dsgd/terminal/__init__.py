"""What a person at a terminal meets: options, progress, summaries, ctrl-C."""
