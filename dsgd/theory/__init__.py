"""Theory: closed forms, a file for each subject."""
