"""Renders the RayJobs and what goes with them: `make manifests`.

    python -m deploy.manifests --image REGISTRY/dsgd-lab:TAG --bucket NAME [--device cpu] [--workers 2] …
    python -m deploy.manifests --check

The first writes ray-job-*.yaml, and two files with which kustomize finds what deploy/observability/ holds.
An option that is not given keeps the value that deploy/settings.yaml has, which is written too.
The second prints what was edited by hand or is out of date, and exits with 1 if anything is. docs/deploy.md
describes the use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deploy.manifests.rendered_files import files, problems
from deploy.manifests.settings import add_options, checked, read_settings
from deploy.project import ROOT


def main(arguments: Sequence[str]) -> int:
    """Write the files or check them; return the exit code."""
    parser = argparse.ArgumentParser(prog="deploy.manifests", description="Renders ray-job-*.yaml.")
    add_options(parser)
    parser.add_argument("--check", action="store_true", help="only print which files are not as rendered")
    given = vars(parser.parse_args(arguments))
    if given.pop("check"):
        found = problems()
        print("\n".join(found) or f"{len(files(read_settings(ROOT)))} files are as rendered")
        return 1 if found else 0
    try:
        written = files(checked(read_settings(ROOT), given))
    except ValueError as error:
        print(f"deploy.manifests: {error}", file=sys.stderr)
        return 2
    for path, text in written.items():
        (ROOT / path).write_text(text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
