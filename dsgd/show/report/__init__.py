"""What people look at: figures made from run records alone."""
