"""What workers and server compute: objectives, tasks, rules, and every random number."""
