"""Reference implementations: each strategy once more, as a plain torch program.

`<mode>.py` is written from the paper's own equations or pseudo code, or is torch's own implementation. It
imports nothing of the strategies, their rules and tasks, or the engines; it shares with them only what must
be the same for a comparison of algorithms: samples, mini-batches, initial weights and compute times
(problem.py). The command

    uv run python -m benchmarks.references ssp

trains the strategy and its reference over several seeds, prints their largest difference, and draws the
page's figures.
"""
