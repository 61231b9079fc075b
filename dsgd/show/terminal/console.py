"""The output of a run on the terminal: a progress line, then a short table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from dsgd.config import TrainConfig, lacks_compute_time
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.option_rules import options
from dsgd.core.problem import score_text
from dsgd.core.protocol import Update
from dsgd.metrics import taken_of_updates
from dsgd.process.outcomes import echoed
from dsgd.process.s3_access import is_s3
from dsgd.records.fault_words import all_of_them
from dsgd.records.schema import Difference, EngineComparison
from dsgd.running.execute import Ended
from dsgd.running.keeper import Running, Watcher
from dsgd.running.predict.verdicts import lines as theory_lines

_REFRESH_S = 0.1
_BAR_WIDTH = 24
_MOST_BARS = 8
_WORKERS_PER_LINE = 6
_FLOPS = ("flops_per_sample", "flops_per_token")
_WAYS = {
    "to_workers": "to workers",
    "to_server": "to the server",
    "between_workers": "between workers",
    "between_servers": "between servers",
    "fetched": "fetched",
}
_MOST_WORKERS = 24  # beyond which the table shows mean and minimum


class ProgressLine(Watcher):
    """Shows what is trained and, on a terminal, updates, loss, staleness, time left and busy workers.

    The line costs nothing between refreshes. Enter it, as a context manager, before the workers are started.
    """

    def __init__(self, cfg: TrainConfig, console: Console) -> None:
        self._budget, self._num_workers = cfg.budget, cfg.num_workers
        self._next_s = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=cfg.output.quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(
            cfg.mode, total=cfg.budget, status=f"starting {cfg.num_workers} workers"
        )

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def follows_updates(self) -> bool:
        return not self._progress.disable

    def started(self, running: Running) -> None:
        self._running = running
        if running.about and not running.cfg.output.quiet:
            with suppress(BrokenPipeError):
                line = workload_line(running.cfg.data.name, running.about)
                self._progress.console.print(f"workload  {line}", soft_wrap=True, highlight=False)
                for note in running.not_kept:
                    said = f"note      {echoed(note)}"
                    self._progress.console.print(said, soft_wrap=True, highlight=False, markup=False)

    def updated(self, update: Update) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _REFRESH_S
            self._refresh()

    def fault(self, fault: FaultSeen) -> None:
        if fault.kind == "driver" and self._running.cfg.engine == "ray":  # after this line it is killed
            self._progress.stop()
            resume = f"; go on with --resume {self._running.path}" if self._running.path else ""
            with suppress(BrokenPipeError):
                print(f"--faults: the driver is killed now{resume}", flush=True)

    def _refresh(self) -> None:
        tally, in_flight = self._running.tally, self._running.cluster.in_flight
        loss = "–" if tally.last_loss is None else f"{tally.last_loss:.4g}"
        status = (
            f"{tally.updates} updates · loss {loss} · staleness {tally.staleness_mean:.2f} · "
            f"{len(in_flight)}/{self._num_workers} busy"
        )
        done = min(tally.gradients, self._budget)
        self._progress.update(self._task, completed=done, status=status)


def workload_line(name: str, about: Mapping[str, Any]) -> str:
    """Return what is trained, and on how much, in a line.

    >>> of = {"train": {"samples": 71116}, "test": {"samples": 1024}}
    >>> workload_line("gpt", {"weights": 98304, "flops_per_sample": 44040192, **of})
    'gpt: 98,304 weights; a gradient takes 44 Mflop a sample; 71,116 samples, 1,024 to test'
    """
    counted = [(key.removeprefix("flops_per_"), about.get(key)) for key in _FLOPS]
    flops = [f"{_with_unit(n, 'flop')} a {what}" for what, n in counted if isinstance(n, int | float)]
    parts = [f"{about['weights']:,} weights"]
    parts += [f"a gradient takes {', '.join(flops)}"] if flops else []
    parts.append(f"{about['train']['samples']:,} samples, {about['test']['samples']:,} to test")
    return f"{name}: {'; '.join(parts)}"


def _with_unit(x: float, unit: str) -> str:
    """Return a number with a decimal prefix: 12.6 MB."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g} {prefix}{unit}"
    return f"{x:.3g} {unit}"


def print_ended(ended: Ended, console: Console) -> None:
    """Print a recorded run's result: its summary or, if it is quiet, the path of its record."""
    with suppress(BrokenPipeError):
        if ended.cfg.output.quiet:
            print(ended.path, flush=True)
        else:
            print_summary(ended.summary, ended.path, console)
            if lacks_compute_time(options(ended.cfg)):
                console.print("note    a mini-batch takes 1 virtual s; --compute-time gives another time")


def print_finished(cfg: TrainConfig, ending: str) -> None:
    """Print where the record of a run is that was finished before."""
    path = cfg.output.folder / str(cfg.output.run_name)
    with suppress(BrokenPipeError):
        if cfg.output.quiet:
            print(path, flush=True)
            return
        print(f"record  {path} (finished before: {ending}; nothing is left to do)", flush=True)
        if is_s3(cfg.output.out):
            print(f"upload  {cfg.output.out.rstrip('/')}/{path.name}", flush=True)


def print_summary(summary: Mapping[str, Any], path: object, console: Console) -> None:
    """Print a finished run's summary as a table."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows(summary):
        table.add_row(name, text)
    console.print(table)
    console.print(f"record  {path}", soft_wrap=True, highlight=False)


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    unit = "virtual s" if summary["engine"] == "sim" else "s"
    clock_s, updates = summary["clock_s"], summary["updates"]
    per_update = f", {clock_s / updates:.4g} {unit} an update" if updates else ""
    rows = [
        ("run", f"{summary['mode']} on {summary['engine']}, {summary['num_workers']} workers"),
        ("stopped by", summary["stopped_by"] + (f": {summary['error']}" if summary["error"] else "")),
        ("updates", f"{updates}, from {summary['gradients']} mini-batches, {summary['samples']} samples"),
        ("time", f"{clock_s:.4g} {unit}{per_update} (start {summary['startup_s']:.1f} s)"),
        ("loss", f"{_number(summary['loss']['first'])} first, {_number(summary['loss']['last'])} last"),
    ]
    evaluation = summary["eval"]
    if evaluation["loss"] is not None:
        score, name = evaluation["accuracy"], evaluation.get("score_name", "accuracy")
        scored = "" if score is None else f", {score_text(name, score)}"
        rows.append(("evaluation", f"loss {_number(evaluation['loss'])}{scored}"))
        if experts := evaluation.get("experts"):
            of_workers = experts["worker_max_violation"]
            workers = "" if of_workers is None else f" (workers {of_workers:.3g})"
            idle = f", {experts['idle_experts']} idle" * bool(experts["idle_experts"])
            entropy = f"router entropy {experts['router_entropy']:.2f} log E"
            rows.append(("experts", f"MaxVio {experts['max_violation']:.3g}{workers}, {entropy}{idle}"))
        if (bits := evaluation.get("bits_per_byte")) is not None:
            perplexity = _number(evaluation["perplexity"])
            rows.append(("held-out text", f"{bits:.4g} bits a byte, perplexity {perplexity}"))
    rows += [(name, _number(summary[name])) for name in taken_of_updates() if summary[name] is not None]
    rows += [
        (name, f"mean {_number(of['mean'])}, last {_number(of['last'])}")
        for name, of in summary.get("extra", {}).items()
    ]
    if sent := _sent(summary):
        rows.append(("sent", sent))
    staleness = summary["staleness"]
    if staleness["mean"] is not None:
        head = f"mean {staleness['mean']:.2f}, p95 {staleness['p95']}, max {staleness['max']}"
        bars = "\n".join(_bars({int(value): n for value, n in staleness["counts"].items()}))
        rows.append(("staleness", f"{head}\n{bars}" if staleness["max"] else head))
    rows.append(("busy", _busy(summary)))
    if summary["faults"]:
        recovered_s, wasted = summary["recovery_s"]["p50"], summary["wasted"]["faults"]
        rows.append(
            ("faults", all_of_them(summary["faults"], recovered_s, summary["repeated"], wasted, unit))
        )
    if summary["theory"]:
        rows.append(("theory says", "\n".join(theory_lines(summary["theory"]))))
    return rows


def _sent(summary: Mapping[str, Any]) -> str:
    """Return how many bytes went which way; empty if none did."""
    ways = [f"{_with_unit(n, 'B')} {_WAYS[way]}" for way, n in summary["bytes"].items() if n]
    if wasted := summary["wasted_bytes"]:
        ways.append(f"{_with_unit(wasted, 'B')} of it wasted")
    return ", ".join(ways)


def _bars(counts: Mapping[int, int]) -> list[str]:
    """Draw a histogram of staleness, in at most _MOST_BARS bins of equal width."""
    width = max(counts) // _MOST_BARS + 1
    bins = [0] * (max(counts) // width + 1)
    for value, n in counts.items():
        bins[value // width] += n
    total, most = sum(bins), max(bins)
    lines = []
    for k, n in enumerate(bins):
        label = str(k) if width == 1 else f"{k * width}–{(k + 1) * width - 1}"
        lines.append(f"{label:>9} {'█' * round(_BAR_WIDTH * n / most):<{_BAR_WIDTH}} {n / total:6.1%}")
    return lines


def _busy(summary: Mapping[str, Any]) -> str:
    clock_s, workers = summary["clock_s"], summary["workers"]
    if not clock_s:
        return "–"
    if spread := summary["over_workers"]:
        restarts = round(spread["restarts"]["mean"] * summary["num_workers"])
        mean, least = spread["busy_s"]["mean"] / clock_s, spread["busy_s"]["min"] / clock_s
    else:
        restarts = sum(entry["restarts"] for entry in workers.values())
        shares = {worker: entry["busy_s"] / clock_s for worker, entry in workers.items()}
        mean, least = sum(shares.values()) / len(shares), min(shares.values())
    lost = f"; {restarts} restarts" if restarts else ""
    if spread or len(workers) > _MOST_WORKERS:
        return f"mean {mean:.0%}, minimum {least:.0%}{lost}"
    cells = [f"{worker:>2}: {share:>4.0%}" for worker, share in shares.items()]
    lines = [cells[i : i + _WORKERS_PER_LINE] for i in range(0, len(cells), _WORKERS_PER_LINE)]
    return "\n".join("  ".join(line) for line in lines) + lost


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.4g}"


def print_comparison(comparison: EngineComparison, console: Console) -> None:
    """Print what Ray and the simulator measured, side by side."""
    table = Table("", "ray", "sim", "sim is off by", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = {
        "s_per_update": "seconds an update",
        "staleness_mean": "mean staleness",
        "staleness_p95": "95th percentile of staleness",
        "idle_share": "idle share",
        "loss_at_the_end": "loss at the end",
    }
    for key, name in names.items():
        entry: Difference = getattr(comparison, key)
        off = entry.relative_difference
        table.add_row(name, _number(entry.ray), _number(entry.sim), "–" if off is None else f"{off:+.1%}")
    distance = comparison.staleness_distance.total_variation
    table.add_row("staleness distributions: total variation", "", "", _number(distance))
    console.print(table)
