"""What options are made of: the rules that stand beside a field, and what the text of an option means."""
