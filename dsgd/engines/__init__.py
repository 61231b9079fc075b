"""The engines: a simulator in virtual time, Ray in wall time, and replays."""
