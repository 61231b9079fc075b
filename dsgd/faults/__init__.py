"""Faults as data: what happens to which workers, and when; one vocabulary for both engines.

`fault.py` has the values, `faults_text.py` reads them, `plan.py` says which are due, `seen.py` is what is
recorded of them. Nothing here has a clock or starts anything: the engines carry a plan out.
"""
