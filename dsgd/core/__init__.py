"""The core: weights, rules, tasks, random numbers; the cluster as a strategy sees it, and its ledger."""
