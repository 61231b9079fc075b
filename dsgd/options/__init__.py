"""What options are made of: the rules of a field, and the meaning of an option's text."""
