"""Loads a file that a user wrote, without leaving compiled files next to it.

Modules are found by their former names, too: a file from before they moved, and the copy of a workload that
an old record keeps, still import them.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from dsgd.process.beside import Beside
from dsgd.process.outcomes import echoed, text_of

_OURS = str(Path(__file__).parents[1])

# A folder, where files of it went, and their names.
_MOVED = (
    ("cluster", "dsgd.core", "clocks ledger ledger_views rescaled_laws timing traffic"),
    ("datasets", "dsgd.models.datasets", "array_files byte_pairs mapped shipped splits token_files"),
    ("models", "dsgd.models.moe", "domains mixture mixture_options mixture_products"),
    ("models", "dsgd.models.networks", "convnets sampling transformer transformer_sizes"),
    ("work", "dsgd.core", "aggregators chunked model problem rng routing rules slices tasks weights"),
    ("work", "dsgd.models.objectives", "expert_parallel group_objective module_blocks module_objective"),
    ("work", "dsgd.models.objectives", "rank_layout rank_sums replica"),
    ("work", "dsgd.scenario", "graphs"),
    ("work", "dsgd.strategies", "optimizers"),
    ("work", "dsgd.transforms", "codecs compressed filters"),
    ("workloads", "dsgd.models.workloads", "_images _mixture digits_cnn fashion gpt mnist moe router"),
)
# Files that got another name, or went into another file: the folders that they were in, and both names.
_RENAMED = (
    ("cluster core", "laws", "dsgd.core.time_laws"),
    ("datasets models.datasets", "local_files", "dsgd.models.datasets.user_files"),
    ("datasets models.datasets", "windows", "dsgd.models.datasets.token_files"),
    ("options core", "constraints", "dsgd.core.option_rules"),
    ("options core", "forms", "dsgd.core.option_forms"),
    ("options core", "texts", "dsgd.core.option_texts"),
    ("work core", "reshuffled", "dsgd.core.shards"),
    ("work core", "shard", "dsgd.core.shards"),
)
_MODULES = {
    "dsgd.cluster": "dsgd.core.protocol",
    "dsgd.datasets": "dsgd.models.datasets",
    "dsgd.workloads": "dsgd.models.workloads",
    **{f"dsgd.{folder}.{stem}": new for folders, stem, new in _RENAMED for folder in folders.split()},
    **{f"dsgd.{old}.{stem}": f"{new}.{stem}" for old, new, stems in _MOVED for stem in stems.split()},
}


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


_FOLDERS = {_folder(name) for name in _MODULES} - {_folder(name) for name in _MODULES.values()} - {"dsgd"}


class _FormerNames(MetaPathFinder, Loader):
    """Finds a module by its former name: the very module, under two names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _MODULES or fullname in _FOLDERS:
            return ModuleSpec(fullname, self, is_package=fullname in _FOLDERS)
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in _FOLDERS:
            if name in _MODULES:
                module.__dict__["__getattr__"] = partial(getattr, import_module(_MODULES[name]))
        else:
            sys.modules[name] = import_module(_MODULES[name])


def know_former_names() -> None:
    """Have imports find modules by their former names too, from now on."""
    if not any(isinstance(finder, _FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FormerNames())
        # The rules of an option's type were imported from here.
        vars(import_module("dsgd.config"))["__getattr__"] = partial(
            getattr, import_module("dsgd.core.option_rules")
        )


class UserCodeError(ValueError):
    """A user's file cannot be used; the message is one line and names the line of the file, not its path."""


BESIDE: dict[str, Beside] = {}
"""What each file has imported from its folder, by the name that the file has as a module."""


def load_code(path: Path, kind: str) -> ModuleType:
    """Return a file as a module, named after its kind and path. It is read again when it, or what it imports
    from its folder, has changed.

    Raises UserCodeError for a file that cannot be read or imported.
    """
    try:
        path = path.resolve()
        name = f"{kind} file {path}"
        if name not in BESIDE or BESIDE[name].has_changed():
            _load(path, name)
    except OSError as error:
        raise UserCodeError(f"cannot be read ({error.strerror})") from None
    return sys.modules[name]


def _load(path: Path, name: str) -> None:
    found, module = Beside(path), ModuleType(name)
    know_former_names()
    module.__file__ = str(path)
    source = path.read_bytes()
    sys.modules[name] = module  # where dataclasses and cloudpickle look it up
    try:
        with found.importable(), in_one_line(path, "cannot be imported: ", passed=(SyntaxError,)):
            exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - the user's own
    except SyntaxError as error:
        file = "" if error.filename == str(path) else f"{error.filename}, "
        raise UserCodeError(f"{file}line {error.lineno}: syntax error ({error.msg}); correct it") from None
    BESIDE[name] = found


@contextmanager
def in_one_line(
    path: Path,
    before: str,
    error: Callable[[str], Exception] = UserCodeError,
    passed: tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """Raise `error` for what a user's code raises, sys.exit() too; ctrl-C and what is `passed` go through.

    path: the user's file; the line of it that failed is in the message, after `before`.
    """
    try:
        yield
    except BaseException as raised:
        if isinstance(raised, (KeyboardInterrupt, *passed)):
            raise
        raise error(before + located(raised, path)) from raised


def located(error: BaseException, path: Path) -> str:
    """Return an error of a user's code in one line, with the line of its file that it came from."""
    file, frames = str(path.resolve()), traceback.extract_tb(error.__traceback__)
    is_package = not (_is_users(file) or file.startswith(_OURS))  # a function of torch's as a loss, say
    lines = [f"line {frame.lineno}: " for frame in frames if frame.filename == file and not is_package]
    lines = lines or [f"{Path(f.filename).name}, line {f.lineno}: " for f in frames if _is_users(f.filename)]
    text = echoed(text_of(error))
    if isinstance(error, ModuleNotFoundError) and (path.parent / f"{error.name}.py").is_file():
        text += "; import it at the top of your file, or in make()"
    line = lines[-1] if lines else ""
    return f"{line}{type(error).__name__}{': ' if text else ''}{text}"


def raised_by_user(error: BaseException) -> bool:
    """Whether an error was raised by a user's own line, not by what was called there, or by a signal."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (_is_users(frames[-1].filename) or frames[-1].filename.startswith("<frozen"))


def _is_users(file: str) -> bool:
    """Whether a file is none of Python, its packages or this one."""
    paths = sysconfig.get_paths()
    others = (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not file.startswith((*others, _OURS, "<"))
