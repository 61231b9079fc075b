"""The record of one run on its way to S3: its name is claimed before the run, its files follow after."""

from __future__ import annotations

import itertools
from dataclasses import replace

from dsgd.config import TrainConfig
from dsgd.records.s3 import Destination, TakenError
from dsgd.records.writer import config_text, default_name, free_path


class Upload:
    """Claims a name in the bucket that `--out` names, and fills it when the run is over.

    cfg: with the name as its run_name. Raises ValueError, naming the option, for a bucket that cannot be
    written to and for a name that is taken.
    """

    def __init__(self, cfg: TrainConfig) -> None:
        self._destination = Destination(cfg.output.out)
        first = free_path(cfg.output, default_name(cfg)).name
        for n in itertools.count(1):
            name = first if n == 1 else f"{first}-{n}"
            self.cfg = replace(cfg, output=replace(cfg.output, run_name=name))
            try:
                self._destination.claim(self._record_name, config_text(self.cfg))
                break
            except TakenError:
                if cfg.output.run_name:
                    raise

    def finish(self) -> str | None:
        """Upload the run's record and return its URL; if there is none, give the name back.

        Raises OSError for an upload that fails.
        """
        name = str(self.cfg.output.run_name)
        folder = self.cfg.output.folder / name
        if not folder.exists():
            self._destination.release(self._record_name)
            return None
        self._destination.upload(folder, name)
        return f"{self._destination.url}/{name}"

    @property
    def _record_name(self) -> str:
        """The name, in the bucket, of the record that the run begins with."""
        name = str(self.cfg.output.run_name)
        return f"{name}/ray" if self.cfg.engine == "both" else name
