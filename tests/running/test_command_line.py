"""The command line understands what it understood before: commands as options, and runs without a word."""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import Any

import pytest
from conftest import CommandLine

from dsgd.compare.experiment_command import CompareOptions
from dsgd.conformance.conformance_command import CheckOptions
from dsgd.core.old_options import OLD as OLD_OPTIONS
from dsgd.process.outcomes import UsageError
from dsgd.serve.options import ServeOptions
from dsgd.show.live.watch_command import WatchOptions
from dsgd.show.report.report_command import ReportOptions
from dsgd.show.terminal.arguments import dashed
from dsgd.show.terminal.cli import parse
from dsgd.show.terminal.command_options import options_of_command
from dsgd.show.terminal.commands import OLD, PLACES, asked
from dsgd.show.terminal.list_command import ListOptions
from dsgd.show.terminal.replay_command import ReplayOptions
from dsgd.show.terminal.trained_commands import EvaluateOptions, ExportOptions, SampleOptions
from dsgd.teach.authoring.scaffold import NewOptions
from dsgd.teach.labs.lab_command import LabOptions

_OF: tuple[type, ...] = (CompareOptions, ReportOptions, ListOptions, WatchOptions, ReplayOptions, NewOptions)
_OF += (EvaluateOptions, SampleOptions, ExportOptions, ServeOptions, CheckOptions, LabOptions)
OPTIONS = {of.__name__.removesuffix("Options").lower(): of for of in _OF}

ALIKE = [
    # as it was written, as it is now
    ("--experiment e.yaml", "compare e.yaml"),
    ("--experiment=e.yaml", "compare e.yaml"),
    ("--experiment e.yaml --open", "compare e.yaml --open"),
    ("--open --experiment e.yaml", "compare --open e.yaml"),
    ("--experiment e.yaml --set steps=10 --set seeds=1", "compare e.yaml --set steps=10 --set=seeds=1"),
    ("--experiment e.yaml --out s3://b/p --upload-every 5", "compare --out s3://b/p --upload-every=5 e.yaml"),
    ("--experiment e.yaml --processes 2 --dry-run", "compare e.yaml --dry-run --processes 2"),
    ("--experiment e.yaml --dry_run", "compare e.yaml --dry-run"),
    ("--experiment e.yaml --check-premise", "compare e.yaml --check-premise"),
    ("--experiment e.yaml --dashboard 80 --log-level info", "compare --dashboard 80 e.yaml --log-level info"),
    (
        "--experiment e.yaml --metrics-port 9090 --metrics-host 0.0.0.0 --metrics-linger-s 3",
        "compare e.yaml --metrics-linger-s 3 --metrics-host 0.0.0.0 --metrics-port 9090",
    ),
    ("--experiment e.yaml --log-format json", "compare e.yaml --log-format json"),
    ("--report runs", "report runs"),
    ("--report=runs", "report runs"),
    ("--report runs --like NAME", "report runs --like NAME"),
    ("--report runs/a --open", "report runs/a --open"),
    ("--report s3://bucket/prefix", "report s3://bucket/prefix"),
    ("--list", "list"),
    ("--list runs/a", "list runs/a"),
    ("--list --last 5", "list --last 5"),
    ("--last 5 --list", "list --last 5"),
    ("--list runs --last=5", "list runs --last=5"),
    ("--watch runs", "watch runs"),
    ("--watch runs --open --port 0", "watch runs --port 0 --open"),
    ("--watch runs --port=8001", "watch runs --port 8001"),
    ("--replay runs/a", "replay runs/a"),
    ("--replay runs/a --until 50 --save w.npy", "replay runs/a --save w.npy --until 50"),
    ("--until 50 --replay runs/a", "replay --until 50 runs/a"),
    ("--evaluate runs/a", "evaluate runs/a"),
    ("--evaluate runs/a@20", "evaluate runs/a@20"),
    ("--evaluate runs/a --on x.npz", "evaluate runs/a --on x.npz"),
    ("--on x.npz --evaluate runs/a", "evaluate --on x.npz runs/a"),
    ("--sample runs/a", "sample runs/a"),
    ("--sample runs/a --prompt 'To be' --tokens 50", "sample runs/a --prompt 'To be' --tokens 50"),
    ("--sample runs/a --temperature 0 --seed 3", "sample runs/a --seed 3 --temperature 0"),
    ("serve runs/a --max_batch 8 runs/b", "serve runs/a runs/b --max-batch 8"),
    ("--export runs/a m.safetensors", "export runs/a m.safetensors"),
    ("--export runs/a m.safetensors --overwrite", "export --overwrite runs/a m.safetensors"),
    ("--new-strategy mine", "new mine"),
    ("--new_strategy mine --into my", "new mine --into my"),
    ("--new-strategy=mine --into=my", "new mine --into my"),
    ("--conformance my/train_mine.py", "check my/train_mine.py"),
    ("--conformance ssp --no-ray", "check ssp --no-ray"),
    ("--no-ray --conformance ssp", "check --no-ray ssp"),
    ("--check 01", "lab 01"),
    ("--check docs/labs/01.yaml my/01.yaml", "lab docs/labs/01.yaml my/01.yaml"),
    ("--check 01 my/01.yaml --reveal --quiet", "lab 01 my/01.yaml --quiet --reveal"),
    ("--check 01 my/01.yaml --json", "lab 01 --json my/01.yaml"),
    ("--csv --limit-s 9 --check 01 answers", "lab 01 answers --csv --limit-s 9"),
    ("--mode ssgd --num-workers 2 --steps 10", "run --mode ssgd --num-workers 2 --steps 10"),
    ("--num_workers=2 --steps=10", "run --num-workers 2 --steps 10"),
    ("--engine sim --compute-time normal:1,.1", "run --compute-time normal:1,.1 --engine sim"),
    ("--mode ssp --slack 3 --slowdown 0=4", "run --slowdown 0=4 --slack 3 --mode ssp"),
    ("--steps 3 --steps 5", "run --steps 5"),
    ("--quiet --no-quiet", "run"),
    ("--dataset digits --hidden 8,4", "run --hidden=8,4 --workload digits"),
    ("--model logistic --dataset digits", "run --workload digits --hidden none"),
    ("--faults kill:2@update=100+30 --on-loss rehost", "run --on-loss rehost --faults kill:2@update=100+30"),
    ("--compress topk:.01 --error-feedback ef", "run --error-feedback ef --compress topk:.01"),
    ("--workload gpt --size 100k --experts 8", "run --experts 8 --workload gpt --size 100k"),
    ("--mode diloco --inner adamw --outer-lr .5 --clip-norm None", "run --mode diloco --outer-lr 0.5"),
    ("--target-loss .3 --eval-every 5", "run --eval-every 5 --target-loss 0.3"),
    ("--checkpoint-every 30 --run-name long --out runs", "run --run-name long --checkpoint-every 30"),
    # options that are part of another's value now
    ("--topology sharded:2 --replicas 2", "--topology sharded:2,replicas=2"),
    ("--replicas 2", "--topology server,replicas=2"),
    ("--replicas 2 --replicas 1", "run"),
    ("--rack-bytes-per-s 1e7 --racks 2", "--racks 2,1e+07"),
    ("--checkpoint-every auto --mtbf 60 --checkpoint-cost-s 1 --engine sim",
     "--checkpoint-every auto,mtbf=60 --checkpoint-cost-s 1 --engine sim"),
    ("--restart-window-s 20 --max-restarts 5", "--restarts 5,within=20"),
    ("--restart-window-s 20", "--restarts 3,within=20"),
    ("--max-restarts=0", "--restarts 0"),
    ("--engine sim --ranks-per-worker 2 --rank-latency-s 1e-5 --rank-bytes-per-s 5e10",
     "--engine sim --ranks-per-worker 2 --rank-link 5e+10,1e-05"),
    ("--engine sim --ranks-per-worker 2 --rank-latency-s .5",
     "--engine sim --ranks-per-worker 2 --rank-link inf,0.5"),
    ("--workload moe --ranks-per-worker 2 --expert-parallel --checkpoint-activations",
     "--workload moe --ranks-per-worker 2 --parallel fsdp,experts --recompute-activations"),
    ("--workload moe --ranks-per-worker 4 --expert-parallel --parallel hsdp:2",
     "--workload moe --ranks-per-worker 4 --parallel hsdp:2,experts"),
    ("--workload moe --balance loss --balance-weight .5", "--workload moe --balance loss:0.5"),
    ("--workload gpt --corpus python --eval-tokens 99", "--workload gpt --data python --eval-samples 99"),
    ("--workload gpt --corpus shakespeare", "--workload gpt"),
    ("--workload fashion --eval-images 99", "--workload fashion --eval-samples 99"),
    ("--mode adacomm --first-local-steps 4", "--mode adacomm --local-steps 4"),
    ("--warmup 5 --schedule cosine", "--schedule cosine,warmup=5"),
    ("--warmup 5", "--schedule constant,warmup=5"),
    ("--uneven 4 --partition dirichlet:.3", "--partition dirichlet:.3,uneven=4"),
    ("--weights speed", "--aggregate mean,speed"),
    ("--weights samples --uneven 4", "--aggregate mean,samples --partition iid,uneven=4"),
    ("--aggregate krum:1 --num-workers 9 --mix nnm:1", "--num-workers 9 --aggregate nnm:1+krum:1"),
]  # fmt: skip


def understood(line: str) -> tuple[str, Any]:
    """Return the command of a line, and its options."""
    command, rest = asked(shlex.split(line))
    return command, parse(rest) if command == "run" else options_of_command(OPTIONS[command], command, rest)


def test_each_command_and_old_option_is_among_them() -> None:
    """Sixty lines or more, with each option that was a command or is part of another's value now."""
    assert len(ALIKE) >= 60
    assert not [name for name in OLD_OPTIONS if f"--{dashed(name)}" not in " ".join(old for old, _ in ALIKE)]
    lines = " ".join(old.replace("_", "-") for old, _ in ALIKE)
    assert not [option for option in OLD if option not in lines and option != "--version"]
    assert {asked(shlex.split(new))[0] for _, new in ALIKE} == {*OPTIONS, "run"} == {*PLACES} - {"version"}


@pytest.mark.parametrize(("old", "new"), ALIKE, ids=[old for old, _ in ALIKE])
def test_what_was_written_before_asks_for_the_same(old: str, new: str) -> None:
    """A command as an option, anywhere on the line and with its values after it, is the command."""
    assert understood(old) == understood(new)


@pytest.mark.parametrize("command", PLACES)
def test_a_command_has_a_function_and_a_page(command: str) -> None:
    """Its function is where the table says, and `--help COMMAND` is the page of `COMMAND --help`."""
    module, _, name = PLACES[command].partition(":")
    assert callable(getattr(import_module(module), name))
    assert asked(["--help", command]) == asked([command, "--help"])


@pytest.mark.parametrize(("name", "topic"), [("ssp", "mode"), ("gpt", "workload")])
def test_help_of_a_mode_or_a_workload_is_found_by_its_name(name: str, topic: str, cli: CommandLine) -> None:
    """`--help ssp` is `--mode ssp --help mode`."""
    (page,) = {cli(line).out for line in (f"--help {name}", f"-h {name}", f"--{topic} {name} --help {topic}")}
    assert "\nOptions of " in page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("comapre e.yaml", "comapre: there is no such command; did you mean compare?"),
        ("frobnicate", "frobnicate: there is no such command; choose from run, compare, "),
        ("list runs more", "'more' is one value too many, see list --help"),
        ("export", "export: RUN and FILE are missing; see export --help"),
        ("--watch", "watch: DIR is missing; see watch --help"),
        ("replay runs/a --until", "--until: needs a value, which must be a whole number or None"),
        ("replay runs/a --until x", "--until x: must be a whole number or None"),
        ("list --last=", "--last ''"),
        ("list --folder runs", "--folder: is not an option of list; see list --help"),
        ("compare e.yaml --open=yes", "--open=yes: is a switch; write --open alone"),
        ("compare e.yaml --set", "--set: needs a value"),
        ("compare e.yaml --steps 3", "--steps: is not an option of compare; an option of its runs is given"),
        ("lab 01 --jsn", "--jsn: is not an option of lab; did you mean --json?"),
        ("lab 01 --limit-s 0", "--limit-s 0.0: must be above 0"),
        ("run list", "'list' is not an option; options are written --name value, see --help"),
        ("--model cnn", "--model cnn: must be one of mlp, logistic"),
        ("--dataset digits --workload gpt", "--dataset digits: --workload is given too; leave this out"),
        ("--replicas 2 --topology sharded:2,replicas=1", "--topology sharded:2,replicas=1,replicas=2: has"),
        ("--first-local-steps 4", "--first-local-steps: there is no such option in --mode ssgd"),
    ],
)
def test_a_mistake_is_answered_in_one_line(line: str, message: str) -> None:
    """It names the command or option, the rule and the remedy."""
    with pytest.raises(UsageError) as refused:
        understood(line)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
