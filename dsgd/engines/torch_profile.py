"""What torch computes in this process, as events in the Chrome trace-event format."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from dsgd.core.protocol import TraceEvents


class TorchProfile:
    """Profiles all threads of this process, from `begin` to `end`."""

    def begin(self) -> None:
        """Return once all that torch computes is seen, after a second or two the first time."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault(
            "KINETO_LOG_LEVEL", "99"
        )  # else it prints its stages, and that a GPU is not here
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(activities=activities, record_shapes=True, experimental_config=threads)
        self._profile.start()

    def end(self) -> TraceEvents:
        """Return the events of all threads."""
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "profile.json")
            self._profile.export_chrome_trace(str(file))
            found = json.loads(file.read_bytes())
        since_us = found.get("baseTimeNanoseconds", 0) / 1000
        return [event | {"ts": event["ts"] + since_us} for event in found["traceEvents"] if "ts" in event]
