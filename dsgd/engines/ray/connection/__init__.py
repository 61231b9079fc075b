"""How the driver opens its Ray cluster, and leaves nothing behind when it closes it."""
