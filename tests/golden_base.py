"""Compares, bit for bit and on this machine, what runs leave here and at an earlier commit.

    make golden                what main was before this change; the gate does it
    make golden BASE=HEAD~1    another commit
    make golden REWRITE=1      writes tests/golden/left.json

Hashes of most sums hold for one kind of processor, so those of other days cannot be compared: both trees
make all runs of golden/lattice.txt and all variants of all modes, with the packages of this environment. The
earlier tree runs its own code on the commands of this one. A run that it cannot make is new, unless its
golden/left.json has it.

What is meant to move has a line in golden/moved.txt, in the commit that moves it: the run, the file and the
commit's subject, with tabs between; `*` is all of them. The next change removes it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]
MOVED = "tests/golden/moved.txt"
CHANGE_S = 6 * 3600
"""How much older than main's end a commit is, s, that was there before the change."""


class Line(NamedTuple):
    """A line of moved.txt."""

    run: str
    file: str
    subject: str

    def covers(self, run: str, file: str) -> bool:
        """Whether it says that a file of a run moves; in each attempt, unless it names one."""
        return self.run in ("*", run) and (self.file in ("*", file) or file.endswith(f" {self.file}"))


def lines_of(text: str) -> Iterator[Line]:
    """Yield the lines of a moved.txt; end the program at one of another form."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            if line.count("\t") != 2:
                raise SystemExit(f"golden: {MOVED}: “{line}”: give RUN<tab>FILE<tab>the commit's subject")
            yield Line(*line.split("\t"))


class Git:
    """A clone, of one branch or more."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def __call__(self, *arguments: str) -> str:
        """Return what git says; empty if it fails."""
        try:
            done = subprocess.run(["git", *arguments], cwd=self.tree, capture_output=True, text=True)
        except FileNotFoundError:
            raise SystemExit("golden: git is not on the PATH; install it to compare with a commit") from None
        return done.stdout.strip() if done.returncode == 0 else ""

    def before_the_change(self) -> str:
        """Return the newest commit that main had before the change; empty if it is not in this clone.

        On a branch it is where that left main. On main it is the newest that is six hours older than its end:
        to compare a few commits twice does no harm.
        """
        head, left_main = self("rev-parse", "HEAD"), self("merge-base", "HEAD", "origin/main")
        if left_main not in ("", head):
            return left_main
        until = int(self("log", "-1", "--format=%ct") or 0) - CHANGE_S
        return self("log", "-1", "--first-parent", "--format=%H", f"--before=@{until}")

    def moved_since(self, base: str) -> tuple[set[Line], list[str]]:
        """Return what has moved by the lines of moved.txt since a commit, and what is wrong with these.

        A line that is not committed is of the commit to come.
        """
        subjects = {*self("log", "--format=%s", f"{base}..HEAD").splitlines()}
        commits = self("rev-list", f"{base}..HEAD", "--", MOVED).split()
        found = {line for commit in commits for line in lines_of(self("show", f"{commit}:{MOVED}"))}
        committed = {*lines_of(self("show", f"HEAD:{MOVED}"))}
        now = {*lines_of((self.tree / MOVED).read_text())}
        late = {line.subject for line in now & committed} - subjects
        wrong = [f"{MOVED}: “{subject}” is an earlier change; remove its lines" for subject in sorted(late)]
        return {line for line in found if line.subject in subjects} | now - committed, wrong


def made_here(asked: Mapping[str, str]) -> dict[str, Any]:
    """Return what each run has left, or why it cannot be made in this tree."""
    import golden_lattice
    import golden_variants

    def made(run: str) -> dict[str, Any]:
        try:
            left = golden_lattice.made(run) if "--" in run else golden_variants.made(run)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return left._asdict()

    found = {}
    for name, run in asked.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found[name] = made(run)
            os.chdir(ROOT)
    return found


def made(asked: Mapping[str, str], *trees: Path) -> list[dict[str, Any]]:
    """Return what the runs leave in each tree, in a process each."""
    with ExitStack() as stack:
        making = []
        for tree in trees:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                [sys.executable, "tests/golden_base.py", "--make"],
                cwd=tree, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
            assert process.stdin
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
            making.append((process, log))
        found = []
        for process, log in making:
            assert process.stdout
            said = process.stdout.read().splitlines()
            if process.wait():
                log.seek(0)
                raise SystemExit(f"golden: the runs cannot be made\n{log.read()[-4000:]}")
            found.append(json.loads(said[-1]))
        return found


def moved(before: Mapping[str, Any], now: Mapping[str, Any], kept: Container[str]) -> list[tuple[str, str]]:
    """Return the files, each with its run, that differ between what runs left before and leave now.

    A run that BASE has kept and cannot make was not compared: the error is in the file's place.
    """
    found = []
    for run, one in now.items():
        if "error" in one:
            found.append((run, one["error"]))
        elif "error" in before[run]:
            found += [(run, f"cannot be made at BASE: {before[run]['error']}")] if run in kept else []
        else:
            here, then = ({"ended": left["ended"], **left["bits"]} for left in (one, before[run]))
            found += [(run, name) for name in sorted({**then, **here}) if here.get(name) != then.get(name)]
    return found


def compare(base: str, asked: Mapping[str, str]) -> int:
    """Compare the working tree with a commit, and print what has moved; return the exit code."""
    git, began = Git(ROOT), time.monotonic()
    beside = git("log", "-1", "--format=%h %s", base)
    with tempfile.TemporaryDirectory(prefix="dsgd-golden-") as folder:
        archive = subprocess.run(["git", "archive", base], cwd=ROOT, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        if not (Path(folder) / "tests/golden_base.py").exists():
            print(f"golden: nothing is compared: {beside}: had no such runs")
            return 0
        kept = json.loads((Path(folder) / "tests/golden/left.json").read_text())
        before, now = made(asked, Path(folder), ROOT)
    declared, wrong = git.moved_since(base)
    changed = [one for one in moved(before, now, kept) if not any(line.covers(*one) for line in declared)]
    for run in dict.fromkeys(run for run, _ in changed):
        wrong.append(f"{run}: {', '.join(file for it, file in changed if it == run)}")
    new, took_s = len(now.keys() - kept.keys()), time.monotonic() - began
    print(f"golden: {len(now)} runs, {new} of them new, {len(changed)} files moved; {took_s:.0f} s; {beside}")
    print("".join(f"  {line}\n" for line in wrong[:40]), end="")
    if changed:
        print(f"golden: what is meant to move has a line in {MOVED}: RUN<tab>FILE<tab>the commit's subject")
    return int(bool(wrong))


def rewrite(asked: Mapping[str, str]) -> int:
    """Write left.json."""
    import golden_lattice
    import golden_variants
    from golden_left import KEPT, Left, kept_of, read
    from golden_left import moved as moved_from_file

    (found,) = made(asked, ROOT)
    for run, one in found.items():
        if "error" in one:
            raise SystemExit(f"golden: {run}: {one['error']}")
    kept, before = {}, read()
    for run, one in sorted(found.items()):
        tolerance = (golden_lattice if "--" in run else golden_variants).tolerance_of(run)
        kept[run] = kept_of(Left(**one), tolerance)
        if kept[run].keys() == before.get(run, {}).keys() and not moved_from_file(Left(**one), before[run]):
            kept[run] = before[run]  # sums of another processor hold too
    lines = ",\n".join(f"{json.dumps(run)}: {json.dumps(one)}" for run, one in kept.items())
    KEPT.write_text(f"{{\n{lines}\n}}\n")
    print(f"golden: {len(kept)} runs are in {KEPT.relative_to(ROOT)}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Do what the words after the command ask for; return the exit code."""
    import golden_lattice
    import golden_variants

    import dsgd

    assert Path(dsgd.__file__).is_relative_to(ROOT), f"the tree in {ROOT} imports {dsgd.__file__}"
    if "--make" in arguments:
        print(json.dumps(made_here(json.load(sys.stdin))))
        return 0
    rows = {row: golden_lattice.command(row) for row in golden_lattice.ROWS}
    asked = rows | {run: run for run in golden_variants.RUNS}
    if "--rewrite" in arguments:
        return rewrite(asked)
    git = Git(ROOT)
    base = git("rev-parse", "--verify", "--quiet", *arguments) if arguments else git.before_the_change()
    if arguments and not base:
        print(
            f"golden: BASE={arguments[0]}: git knows no such commit; name one of this clone", file=sys.stderr
        )
        return 2
    if not base:
        print("golden: nothing is compared: this clone has no commit from before the change; BASE names one")
        return 0
    return compare(base, asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
