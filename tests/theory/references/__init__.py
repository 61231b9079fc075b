"""Reference implementations: each strategy once more, as a plain torch program.

`<mode>.py` is written from the paper's own equations or pseudo code, or is torch's own implementation. It
imports nothing of the strategies, their rules and tasks, or the engines; it shares with them only what must
be the same for a comparison of algorithms: samples, mini-batches, initial weights and compute times
(problem.py). The command

    PYTHONPATH=tests/theory uv run python -m references ssp

trains the strategy and its reference over several seeds, prints their largest difference, and draws the
page's figures.

A reference is found by its file's name. It has

    OPTIONS                       of the strategy and of `train`, for the page's figure
    VARIANTS                      if there are any: further options under which the tests compare the two
    OTHER                         options of a different algorithm: the tests see that it is noticed
    train(problem, **options)     yields a `Version` for each update
    PROCESSES                     if `train` runs in one process per worker, in a group of torch.distributed
    published(run)                if there is a formula to compare with: what is measured of it, for a figure
"""
