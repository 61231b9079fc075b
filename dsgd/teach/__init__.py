"""For courses and authors: labs/, and authoring/ with the scaffold of a strategy."""
