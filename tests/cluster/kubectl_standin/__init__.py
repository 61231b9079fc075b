"""A kubectl that plays scenarios, for the tests of the cluster tools."""
