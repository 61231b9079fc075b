"""The check of the labs in docs/labs: predictions, options and strategies held to measurement and theory."""
