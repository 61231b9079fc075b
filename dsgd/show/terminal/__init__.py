"""The user at the terminal: options, progress, summaries, ctrl-C."""
