"""Names that modules had before they moved: a workload's file that an old record keeps still imports them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# A folder, where files of it went, and their names.
_ROWS = (
    ("cluster", "dsgd.core", "clocks ledger ledger_views message_sizes rescaled_laws"),
    ("cluster", "dsgd.core", "timing traffic"),
    ("cluster", "dsgd.transforms", "aggregating compression heard_weights"),
    ("datasets", "dsgd.models.datasets", "array_files blocks byte_pairs digest fetched idx_files"),
    ("datasets", "dsgd.models.datasets", "local_files mapped npy_files parquet_files roles shipped"),
    ("datasets", "dsgd.models.datasets", "splits text_files token_files windows"),
    ("models", "dsgd.models.moe", "domains mixture mixture_options mixture_products"),
    ("models", "dsgd.models.networks", "convnets sampling transformer transformer_sizes"),
    ("work", "dsgd.core", "aggregators chunked model problem reshuffled rng routing"),
    ("work", "dsgd.core", "rules shard slices tasks weights"),
    ("work", "dsgd.models.objectives", "classifier_module expert_parallel group_objective"),
    ("work", "dsgd.models.objectives", "module_blocks module_objective rank_layout rank_sums replica"),
    ("work", "dsgd.strategies", "optimizers"),
    ("work", "dsgd.transforms", "codecs compressed filters mislabelled"),
    ("workloads", "dsgd.models.workloads", "_images _mixture digits_cnn fashion gpt mnist moe router"),
)
# Files that got another name in the room where they are, or on the way there: their folders, and both names.
_RENAMED = (
    ("cluster core", "laws", "dsgd.core.time_laws"),
    ("cluster core", "state", "dsgd.core.cluster_state"),
    ("cluster transforms", "around", "dsgd.transforms.wrapped_engine"),
    ("cluster transforms", "lying", "dsgd.transforms.lying_workers"),
    ("options core", "constraints", "dsgd.core.option_rules"),
    ("options core", "forms", "dsgd.core.option_forms"),
    ("options core", "texts", "dsgd.core.option_texts"),
)
_MODULES = {
    "dsgd.cluster": "dsgd.core.protocol",
    "dsgd.datasets": "dsgd.models.datasets",
    "dsgd.options.aggregate": "dsgd.transforms.aggregate_options",
    "dsgd.options.compress": "dsgd.transforms.compress_options",
    "dsgd.workloads": "dsgd.models.workloads",
    **{f"dsgd.{folder}.{stem}": new for folders, stem, new in _RENAMED for folder in folders.split()},
    **{f"dsgd.{old}.{stem}": f"{new}.{stem}" for old, new, stems in _ROWS for stem in stems.split()},
}
_FOLDERS = {former.rpartition(".")[0] for former in _MODULES} - {
    "dsgd",
    "dsgd.core",
    "dsgd.models",
    "dsgd.transforms",
}


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
