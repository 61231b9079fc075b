"""For authors of strategies: the scaffold (`new`)."""
