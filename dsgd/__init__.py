"""A laboratory for distributed SGD: strategies that read like their papers, on Ray and in a simulator.

`config`, `data`, `metrics`, the first four strategies and the command line are links to the files at the top
of the repository: their code is there, their name is here, so that no other module called `config` or `data`
gets in the way.
"""
