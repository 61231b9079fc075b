"""What a user's file imports from its own folder, which is first on the path as it is for a script.

Only while the file is read, and while its functions make what is trained: afterwards no import finds these
modules. So files of one name, in two folders or the product's, stay two modules, and what is sent to another
process takes its code along: cloudpickle sends by name only what can be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dsgd.process.environment import ROOT


class Beside:
    """The modules that one file, given by its resolved path, has imported from its folder."""

    def __init__(self, file: Path) -> None:
        self._folder, self._modules = file.parent, dict[str, ModuleType]()
        self._contents = {file: file.read_bytes()}  # some disks keep times in whole seconds

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Have imports find what lies in the folder before anything else."""
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if self._hides(name)}
        others = {*sys.modules}
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder may be a record's
        importlib.invalidate_caches()
        try:
            yield
        finally:
            if str(self._folder) in sys.path:  # the file may have changed it
                sys.path.remove(str(self._folder))
            sys.dont_write_bytecode = writes
            own = [name for name in sys.modules.keys() - others if _lies_in(self._folder, name)]
            self._modules |= {name: sys.modules.pop(name) for name in own}
            sys.modules.update(hidden)
            for path in self.files.values():
                self._contents.setdefault(path, path.read_bytes())

    @property
    def files(self) -> Mapping[str, Path]:
        """The files of these modules, by their paths in the folder."""
        paths = sorted(Path(module.__file__) for module in self._modules.values() if module.__file__)
        return {path.relative_to(self._folder).as_posix(): path for path in paths}

    def has_changed(self) -> bool:
        """Return whether the file, or one of these, has changed since; raises OSError if one is gone."""
        return any(path.read_bytes() != content for path, content in self._contents.items())

    def _hides(self, name: str) -> bool:
        """Whether a module here takes the place of one that is imported: another copy, or the product's."""
        return _lies_in(self._folder, name) or (_lies_in(ROOT, name) and self._has(name))

    def _has(self, name: str) -> bool:
        here = self._folder / name.partition(".")[0]
        return here.is_dir() or here.with_suffix(".py").is_file()


def _lies_in(folder: Path, name: str) -> bool:
    """Whether an imported module was found in a folder, and is not the product."""
    top, own = name.partition(".")[0], getattr(sys.modules[name], "__dict__", {})
    if top in ("dsgd", "__main__"):
        return False
    # Texts, not paths: a process has thousands of modules.
    here = f"{str(folder).rstrip(os.sep)}{os.sep}{top}"  # of / too
    begins = f"{here}{os.sep}", f"{here}.py{os.sep}"
    found = (own.get("__file__"), *(own.get("__path__") or ()))
    return any(place and f"{place}{os.sep}".startswith(begins) for place in found)
