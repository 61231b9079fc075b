"""The file of a run's workload, and those that it imports from its folder, kept in the record: what is
trained is code, and code changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from dsgd.models.workloads import code_of, file_of, module_of
from dsgd.process.user_code import BESIDE
from dsgd.records.reader import read_meta
from dsgd.records.schema import RecordError

CARRIED = "carried.safetensors"
"""What the first worker's module carries at the end besides its weights, where it carries anything."""

COPY = "workload.py"
CODE = "code"
"""The folder with that file, by its name, and those that it imports, if there are any."""
# Digests of files that ship, from before modules or options got new names. They are the same workloads.
_BEFORE = {
    "5d740985a6febc88f37e1bfc8c04953b6d53297b91ff3ee4b7d53817df692b2b": "digits_cnn",
    "0b1702ad373cf2c8e4d50283b2ce261b904a8b0202a639ab5ceda5f3de518f21": "fashion",
    "2a544ba59016ed86d896fa5d8b35d76579d379225b2bdb2d83e6cdf69d0a65a7": "gpt",
    "ccfd64f3e06b5c8d94672c68b5d4620ad0971ab97f1b8b4a7dbaa4727535e8d6": "mnist",
    "1769237fc76f4ae0aecc8a4d2738cdf0e618a9036bb6c2e9a78933b833fdbd0c": "moe",
    "35a4766f5fe3dec81648ab5c966b52b03b917e246527cd64e0836e241b5127b0": "router",
    "f2dcc5e68218f9ab23b6053c8840136c3ea798895f999c5b5ff03b43a07d0103": "gpt",
    "1f73375dc38680f14bc47149e521df5746880a85480193c95e99c03d732b404b": "router",
    "6ae3654d8abc72025e55b501793b1a70d7c78722625518e2c95e079b0014524e": "gpt",
    "540cb108e623ef8bb260076c784a780fc3ab48836bccbd3c29381d9925ddccbc": "router",
    "9a3e2c68f15f3186243738a225307b12e6d631352151f4ef0484a2b14ac2572b": "fashion",
    "031d59a7c67d67ef6f3affa0bd6ec2324c8a8bc4b5014294703f78cc93e10a80": "gpt",
}


def contents_of(workload: str) -> dict[str, bytes]:
    """Return what a record has of a workload, which has been made: its file, as `COPY`; if it imports others
    from its folder, those and itself in `CODE`.
    """
    file = file_of(workload)
    found = {COPY: file.read_bytes()}
    files = BESIDE[code_of(workload).__name__].files
    for name, path in {file.name: file, **files}.items() if files else ():
        found[f"{CODE}/{name}"] = path.read_bytes()
    return found


def digests(contents: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each file in `CODE`, by its path there."""
    return {name[len(CODE) + 1 :]: digest(content) for name, content in contents.items() if name != COPY}


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(content).hexdigest()


def changed_since(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return, in words, that the workload of a record is not what it was; None if it is.

    config: the record's. Raises RecordError if its meta.json cannot be read.
    """
    workload = module_of(config)
    if workload is None:
        return None
    meta = read_meta(path)
    recorded = meta.workload_sha256
    for name, was in {"": recorded, **meta.workload_files}.items():
        kept, said = (path / CODE / name, f"file {name}") if name else (path / COPY, str(workload))
        try:
            file = file_of(str(workload))
            now = digest((file.resolve().parent / name if name else file).read_bytes())
        except (OSError, ValueError):
            return f"its workload {said} is not there any more; put {kept} in its place"
        if now != was and (was, workload) not in _BEFORE.items():
            return f"its workload {said} has changed since; put {kept} in its place"
    return None


def changed_lines(path: Path, config: Mapping[str, Any]) -> str:
    """Return which lines of a record's workload are others now, in words; empty if none is, or it is gone."""
    found, workload = list[str](), module_of(config)
    if workload is None or changed_since(path, config) is None:
        return ""
    with suppress(OSError, ValueError):
        file = file_of(workload).resolve()
        for name in read_meta(path).workload_files or [""]:
            was, now = (path / CODE / name, file.parent / name) if name else (path / COPY, file)
            before, after = (some.read_text(encoding="utf-8").splitlines() for some in (was, now))
            changes = SequenceMatcher(None, before, after).get_opcodes()
            spans = [(i + 1, max(i + 1, j)) for kind, _, _, i, j in changes if kind != "equal"]
            lines = ", ".join(f"{i}" if i == j else f"{i}-{j}" for i, j in spans)
            found += [f"{now.name} has changed since (lines {lines})"] if lines else []
    return "; ".join(found)


def code_in(path: Path, config: Mapping[str, Any]) -> Path:
    """Return the file that a record's run trained: the user's if it is the same still, so that it finds what
    lies beside it; else the record's own.

    config: the record's, which names a workload. Raises RecordError for a copy that is not there or damaged.
    """
    meta, workload = read_meta(path), str(config["workload"])
    files = {path / CODE / name: recorded for name, recorded in meta.workload_files.items()}
    for copy, recorded in {path / COPY: meta.workload_sha256, **files}.items():
        try:
            content = copy.read_bytes()
        except OSError as error:
            raise RecordError(f"{copy}: cannot be read ({error.strerror}); the record is damaged") from None
        if digest(content) != recorded:
            raise RecordError(
                f"{copy}: is not the file that was trained (its digest differs); it was changed"
            )
    if not changed_since(path, config):
        return file_of(workload)
    return path / CODE / Path(workload).name if files else path / COPY
