"""Theory against measurement: every closed form that the suite is held to, a row each, in tables by group."""
