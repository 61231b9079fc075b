"""What a strategy sees (protocol.py), its weights, rules and tasks; the ledger, clocks, random numbers."""
