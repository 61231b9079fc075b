"""Which closed forms concern a run, and whether they agree with what was measured."""
