"""Theory against measurement: `make theory`, or

    PYTHONPATH=tests/theory python -m gate           # --markdown prints docs/theory.md

A row has a formula, its value, and a way to measure the same thing with the simulator. Where chance is in
it, the measurement is repeated with independent seeds, and the verdict is Student's two-sided test at the
level of row.py: the value must lie in the interval around the mean. Where nothing is left to chance, the
two must agree to rounding. Values that the literature has only as simulations carry their own tolerance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator

from gate import descent, experts, gossip, hosts, liars, stale, times, unsent
from gate.row import LEVEL, Measurement, Row

GROUPS: dict[str, Callable[[], Iterable[Row]]] = {
    "Time": times.rows,
    "Staleness": stale.rows,
    "Failures": hosts.rows,
    "Optimization": descent.rows,
    "Experts": experts.rows,
    "Compression": unsent.rows,
    "Lies": liars.rows,
    "Gossip": gossip.rows,
}

_HEADING = """# Theory against measurement

Made by `make theory`; tests/theory/gate has the runs. A line is a formula, and *cases* counts the parameters
for which it was compared. *Off by* is the distance between formula and measurement, as a share of what is
allowed: half the 99.9 % interval of the measurement or, where nothing is left to chance, rounding.
"""

_READING = """
## How a run is compared with theory

The summary of a run, and its report, compare it with the formulas that apply to it:

    theory says  7 mean staleness, measured 7.003 ± 0.071 (agrees)

Measured is the mean after the warm-up, and ± one standard error of it. Values of neighbouring updates
depend on each other, so the error comes from the means of some 8 to 32 long batches:
dsgd/theory/uncertainty.py has the method and its sources. A report pools the seeds of a variant.

- **agrees**: within two standard errors.
- **2.4 standard errors off: may be chance**: so is a correct formula more often than once in 1,000
  comparisons.
- **DIFFERS by 4.1 standard errors**: farther than that; the run contradicts the formula.
- **+24%: messages and computing take time too**: the same on Ray, where the formula knows of drawn compute
  times only.
- **exact**: nothing is left to chance, and the two are equal.
- **kept**, **BROKEN**: of bounds, at any length.
- **too short to compare**: the run has fewer updates than 40 times those in which it forgets its start (in
  ASGD, those in which each worker delivers once), or than 100 times the squared skewness of its times.
- **too heavy a tail to compare**: the times have no third moment, like Pareto's for alpha up to 3, so no
  length of the run gives a standard error.
- **not compared**: the run diverged or failed, workers were lost, or its times never forget their start.

The speed of DSSP, AdaComm, Rennala and Ringmaster has no closed form here, nor has the mean staleness of
DSSP and Ringmaster: tests check bounds and limiting cases.

tests/theory/test_uncertainty.py holds runs of all lengths to this: correct ones look like contradictions at
most once in 1,000 comparisons, and wrong formulas do.
"""


def rows() -> list[Row]:
    """Return every row of the table."""
    return [row for of_group in GROUPS.values() for row in of_group()]


def by_formula(measured: Iterable[Measurement]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each formula and what it is of: its cases, and how far the worst one is off."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in measured:
        case, _, quantity = one.row.what.rpartition(": ")
        name = f"{case.partition(',')[0]}: {quantity}" if case else quantity
        groups.setdefault((name, one.row.formula), []).append(one)
    for (name, formula), cases in groups.items():
        off = max(abs(one.measured - one.row.value) / max(one.allowed, 1e-99) for one in cases)
        yield name, formula, str(len(cases)), f"{off:.0%}"


def main(markdown: bool) -> int:
    """Print the table; return 1 if a row fails."""
    tables = {group: [row.check() for row in of_group()] for group, of_group in GROUPS.items()}
    head = ("what", "formula", "value", "measured", f"± {LEVEL:.1%}", "verdict")
    lines = {
        group: [
            (
                one.row.what,
                one.row.formula,
                f"{one.row.value:.5g}",
                f"{one.measured:.5g}",
                f"{one.allowed:.2g}",
                "holds" if one.holds else "FAILS",
            )
            for one in measured
        ]
        for group, measured in tables.items()
    }
    if markdown:
        print(_HEADING, end="")
        for group, measured in tables.items():
            print(f"\n## {group}\n\n| what | formula | cases | off by at most |\n|" + "---|" * 4)
            for line in by_formula(measured):
                print("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
        print(_READING, end="")
    else:
        flat = [head, *(line for table in lines.values() for line in table)]
        widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
        for line in flat:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    return int(not all(one.holds for measured in tables.values() for one in measured))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gate", allow_abbrev=False)
    parser.add_argument("--markdown", action="store_true", help="print docs/theory.md")
    sys.exit(main(parser.parse_args().markdown))
