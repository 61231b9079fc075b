"""The engines: sim/ in virtual time, ray/ in wall time, and replays of records."""
