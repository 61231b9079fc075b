"""What a user may get wrong: one line that names the option, the rule and the remedy, and nothing written."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT, CommandLine, run_python

from dsgd.config import TrainConfig
from dsgd.core.option_effects import BUILT_IN
from dsgd.core.option_rules import HIDDEN, NotWith, OnlyWith, option_fields, options
from dsgd.models.workloads import names as workloads
from dsgd.scenario.timing_options import TimingConfig
from dsgd.show.terminal import commands
from dsgd.show.terminal.cli import parse
from dsgd.show.terminal.commands import PLACES
from dsgd.show.terminal.front_page import TOPICS
from dsgd.strategies import config_of, load, modes
from main import main

SIM = "--engine sim"

WRONG = [
    # command line, what the message must name
    ("--mode sgd", ["--mode sgd", "asgd, ", "ssgd, ssp"]),
    ("--slack 3", ["--slack", "--mode ssp", "leave it out"]),
    ("--mode asgd --local-steps 3", ["--local-steps", "--mode adacomm, diloco, easgd, localsgd"]),
    ("--engine both --record none", ["--record none", "--engine both", "--record all"]),
    ("--mode diloco --outer-lr 0", ["--outer-lr 0", "above 0"]),
    ("--mode diloco --outer-momentum 1", ["--outer-momentum 1", "[0, 1)"]),
    ("--mode diloco --momentum .9", ["--momentum 0.9", "--inner sgd", "leave it out"]),
    ("--mode easgd --moving-rate 1.5", ["--moving-rate 1.5", "(0, 1]"]),
    ("--mode easgd --exchange never", ["--exchange never", "sync, async"]),
    ("--mode localsgd --lr-scaling workers", ["--lr-scaling", "--mode asgd, "]),
    ("--num-workers 0", ["--num-workers 0", "at least 1"]),
    ("--num-workers two", ["--num-workers two", "whole number"]),
    ("--num-workers", ["--num-workers", "needs a value", "whole number"]),
    ("--error-feedback", ["--error-feedback: needs a value", "one of none, ef, ef21"]),
    ("--error-feedback off", ["--error-feedback off", "one of none, ef, ef21"]),
    ("--quiet=true", ["--quiet=true: is a switch", "write --quiet alone"]),
    ("--no-quiet=", ["--no-quiet=: is a switch", "write --no-quiet alone"]),
    ("--no-seed", ["--no-seed", "did you mean --seed?"]),
    ("--steps --seed 1", ["--steps: needs a value", "whole number"]),
    ("--steps=", ["--steps '': must be a whole number"]),
    ("--steps 1.5", ["--steps 1.5", "whole number"]),
    ("--lr 0", ["--lr 0.0", "above 0"]),
    ("--lr nan", ["--lr nan", "finite"]),
    ("--momentum 1", ["--momentum 1.0", "[0, 1)"]),
    ("--seed -1", ["--seed -1", "[0, 2^63)"]),
    ("--mode ssp --slack -1", ["--slack -1.0", "at least 0"]),
    ("--mode ssp --slack 1.5", ["--slack 1.5", "whole number"]),
    ("--mode ssp --slack nan", ["--slack nan", "whole number"]),
    ("--mode localsgd --local-steps 0", ["--local-steps 0", "at least 1"]),
    (
        "--samples 64 --num-workers 4 --batch-size 32",
        ["--batch-size 32", "16 of the 64", "lower --batch-size"],
    ),
    ("--samples 3 --num-workers 4", ["--samples 3", "4 workers", "raise --samples"]),
    ("--workload digits --samples 2000", ["--samples 2000", "1438"]),
    ("--engine cloud", ["--engine cloud", "ray, sim"]),
    ("--compute-time gamma:1", ["--compute-time", "gamma:1", "exponential:MEAN"]),
    ("--compute-time exponential", ["--compute-time", "exponential:MEAN"]),
    ("--compute-time exponential:1,2", ["--compute-time", "2 parameters", "exponential:MEAN"]),
    ("--compute-time exponential:-1", ["--compute-time", "above 0"]),
    ("--compute-time constant:-1", ["--compute-time", "at least 0"]),
    ("--compute-time constant:inf", ["--compute-time", "finite"]),
    ("--compute-time uniform:2,1", ["--compute-time", "LOW <= HIGH"]),
    ("--compute-time markov:1,5,0,.2", ["--compute-time", "probabilities"]),
    ("--compute-time trace:nowhere.csv", ["--compute-time", "nowhere.csv", "No such file"]),
    ("--slowdown 4=2", ["--slowdown 4=2", "0 to 3"]),
    ("--slowdown 0", ["--slowdown 0", "WORKER=FACTOR"]),
    ("--slowdown 0=-1", ["--slowdown 0=-1", "above 0"]),
    ("--slowdown 0=2,0=3", ["--slowdown 0=2,0=3", "each worker once"]),
    ("--workload quadratic --curvatures 1,2,3", ["--curvatures 1,2,3", "each of the 4 workers"]),
    ("--workload quadratic --curvatures 0", ["--curvatures 0", "above 0"]),
    ("--workload quadratic --optima a", ["--optima a", "separated by commas"]),
    ("--hidden 0", ["--hidden 0", "or none for no hidden layer"]),
    ("--partition dirichlet:0", ["--partition", "dirichlet:ALPHA"]),
    ("--partition random", ["--partition random", "iid, label"]),
    ("--label-noise 2", ["--label-noise 2.0", "[0, 1]"]),
    ("--dim 1", ["--dim 1", "at least 2"]),
    ("--max-seconds 0", ["--max-seconds 0.0", "above 0"]),
    ("--target-loss nan", ["--target-loss nan", "finite"]),
    ("--eval-every -1", ["--eval-every -1", "at least 0"]),
    ("--record some", ["--record some", "every:N"]),
    ("--record every:0", ["--record every:0", "every:N"]),
    ("--run-name a/b", ["--run-name a/b", "folder"]),
    ("--out s3://Lab/may", ["--out s3://Lab/may", "s3://BUCKET/PREFIX", "small letters"]),
    ("--out s3://lab/../may", ["--out s3://lab/../may", "s3://BUCKET/PREFIX"]),
    ("--out s3://", ["--out s3://", "s3://BUCKET/PREFIX"]),
    ("--trace-last -1", ["--trace-last -1", "at least 0"]),
    ("--trace-last many", ["--trace-last many", "whole number or None"]),
    ("--trace-last 9 --record none", ["--trace-last 9", "--record all"]),
    ("--gpus-per-worker 1.5", ["--gpus-per-worker 1.5", "(0, 1]"]),
    ("--metrics-port 65536", ["--metrics-port 65536", "0 to 65535"]),
    ("--dashboard -1", ["--dashboard -1", "0 to 65535"]),
    ("--dashboard 8000 --metrics-port 8000", ["--dashboard 8000", "another port"]),
    ("--metrics-port 0 --metrics-host nowhere.invalid", ["--metrics-port 0", "nowhere.invalid", "address"]),
    ("--metrics-host 0.0.0.0", ["--metrics-host 0.0.0.0", "--metrics-port"]),
    ("--metrics-linger-s 5", ["--metrics-linger-s 5", "--dashboard"]),
    ("--metrics-linger-s -1 --dashboard 0", ["--metrics-linger-s -1", "at least 0"]),
    ("--metrics-linger-s inf --dashboard 0", ["--metrics-linger-s inf", "finite"]),
    ("--num-workers 257 --metrics-port 0", ["--metrics-port 0", "256", "--dashboard"]),
    ("--workload digits --dim 3", ["--dim 3", "no effect", "--workload digits", "leave it out"]),
    ("--workload quadratic --batch-size 8", ["--batch-size 8", "no effect", "--workload quadratic"]),
    ("--workload none --batch-size 8", ["--batch-size 8", "no effect", "--workload none"]),
    ("--workload none --target-loss 1", ["--target-loss 1", "no effect", "--workload none"]),
    ("--workload quadratic --hidden 8", ["--hidden 8", "no effect", "--workload quadratic"]),
    ("--workload quadratic --hidden none", ["--hidden none", "no effect", "xor or digits"]),
    ("--workload quadratic --samples 8", ["--samples 8", "no effect"]),
    ("--curvatures 2", ["--curvatures 2", "no effect", "--workload xor", "only with --workload quadratic"]),
    ("--workload digits --optima 2", ["--optima 2", "no effect", "--workload digits"]),
    ("--grad-noise 1", ["--grad-noise 1", "no effect"]),
    ("--engine ray --restart-s 5", ["--restart-s 5.0", "no effect", "--engine ray", "--engine sim"]),
    ("--start-timeout-s 5", ["--start-timeout-s 5", "no effect", "--engine sim"]),
    ("--gpus-per-worker .5", ["--gpus-per-worker 0.5", "no effect", "--engine sim"]),
    (
        "--engine ray --device cpu --gpus-per-worker .5",
        ["--gpus-per-worker 0.5", "no effect", "--device cpu", "only with --device auto or cuda"],
    ),
    ("--target-loss 1 --eval-every 0", ["--target-loss 1.0", "set --eval-every"]),
    ("--mode ringmaster --delay-bound 0", ["--delay-bound 0.0", "at least 1, or inf"]),
    ("--stepz 3", ["--stepz", "did you mean --steps"]),
    ("--frobnicate", ["--frobnicate", "no such option"]),
    ("fast", ["'fast'", "--name value"]),
    ("--lr abc", ["--lr abc", "must be a number"]),
    ("--workload cifar", ["--workload cifar", "xor, digits, quadratic, none, "]),
    ("--run-name 😀", ["--run-name 😀", "letters, digits and . _ + = -"]),
    (f"--run-name {'ü' * 101}", ["--run-name ü", "at most 200 bytes"]),
    ("--run-name .a", ["--run-name .a", "no . + = - first"]),
    (f"--note {'x' * 501}", ["--note xxx", "one line of at most 500 letters"]),
    ("--out /proc", ["--out /proc", "be written to", "choose another folder"]),
    ("--out /etc/passwd", ["--out /etc/passwd", "not a folder", "choose another folder"]),
    (f"--out {'x' * 300}", ["--out xxx", "…: cannot be a folder (File name too long)", "another folder"]),
    ("--config /etc", ["--config /etc", "cannot be read (Is a directory)", "config.yaml"]),
    ("--config /etc/passwd", ["--config /etc/passwd", "mapping", "config.yaml"]),
    ("--compute-time exponential:1 --momentum 1", ["--momentum 1.0", "[0, 1)"]),
    ("--config nowhere.yaml", ["--config nowhere.yaml", "cannot be read"]),
    ("--engine ray --topology allreduce:halving", ["--topology", "--engine sim"]),
    ("--engine ray --server-time constant:1", ["--server-time", "--engine sim"]),
]


@pytest.mark.parametrize(("text", "parts"), WRONG, ids=[text for text, _ in WRONG])
def test_a_mistake_gets_one_line_and_nothing_is_written(
    text: str, parts: list[str], cli: CommandLine
) -> None:
    """Exit 2, one line on standard error that names the option and the rule, no record."""
    engine = "" if "--engine" in text else SIM
    ran = cli(f"{engine} {text}", *([] if "--run-name" not in text else ["--quiet"]))
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1
    for part in parts:
        assert part in ran.err
    assert ran.out == ""
    assert not cli.out.exists()


def test_a_run_name_may_have_any_letters(cli: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    """Letters beyond a-z are letters too: such a run is listed, reported on, gone on with and replayed."""
    first = cli(f"{SIM} --steps 20 --workload none --checkpoint-every 1 --run-name _ünï")
    assert first.code == 0, first.err
    for command in ("list {0}", "report {0}/_ünï", "replay {0}/_ünï", "--resume {0}/_ünï --steps 30"):
        assert main(command.format(cli.out).split()) == 0, capsys.readouterr().err


def test_a_taken_run_name_is_refused_and_never_overwritten(cli: CommandLine) -> None:
    """The second run of a name changes nothing of the first."""
    first = cli(f"{SIM} --steps 2 --workload none --run-name mine")
    assert first.code == 0
    before = {path: path.read_bytes() for path in (cli.out / "mine").iterdir()}
    second = cli(f"{SIM} --steps 3 --workload none --run-name mine")
    assert second.code == 2
    assert "--run-name mine" in second.err
    assert "another name" in second.err
    assert {path: path.read_bytes() for path in (cli.out / "mine").iterdir()} == before


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["is empty"]),
        ("seconds\n", ["is empty"]),
        ("time\n1\n", ["line 2", "'seconds'"]),
        ("seconds\n1\n-1\n", ["line 3", "at least 0"]),
        ("seconds\ninf\n", ["line 2", "finite"]),
        ("worker,seconds\n0,1\n2,1\n", ["worker 1"]),
        ("worker,seconds\n0,1\n1,1\n", ["0 to 3", "row"]),
    ],
)
def test_a_bad_trace_is_refused(content: str, parts: list[str], cli: CommandLine, tmp_path: Path) -> None:
    """A trace file that is empty or has a bad row is named, with the line."""
    path = tmp_path / "times.csv"
    path.write_text(content)
    ran = cli(f"{SIM} --compute-time trace:{path}")
    assert ran.code == 2
    for part in ("--compute-time", *parts):
        assert part in ran.err


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("stepz: 3", ["stepz: ", "did you mean steps"]),
        ("slack: 3", ["slack", "--mode ssp"]),
        ("steps: many", ["config.yaml: --steps many", "whole number"]),
        ("lr: null", ["config.yaml: --lr None", "must be a number"]),
        ("lr: 0", ["config.yaml: --lr 0.0", "above 0"]),
        ("dashboard: abc", ["config.yaml: --dashboard abc", "whole number or None"]),
        ("workload: digits\ndim: 3", ["config.yaml: --dim 3", "no effect with --workload digits"]),
        ("quiet: 1", ["config.yaml: 'quiet'", "true or false"]),
        ("steps: [1, 2]", ["'steps'", "one value"]),
        ("engine: cloud", ["--engine cloud", "ray, sim"]),
        ("- steps", ["mapping"]),
        ("", ["config.yaml: is empty", "give a run's config.yaml"]),
        ("steps: 3\nlr: 1\nsteps: 4", ["config.yaml: line 3", "'steps' appears twice"]),
        ("steps: 'unclosed", ["is not YAML"]),
    ],
)
def test_a_bad_config_file_is_refused(
    content: str, parts: list[str], cli: CommandLine, tmp_path: Path
) -> None:
    """Unknown keys, wrong types and files that are not a configuration are named in one line."""
    path = tmp_path / "config.yaml"
    path.write_text(content)
    ran = cli(f"{'' if 'engine' in content else SIM} --config {path}")
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1
    for part in parts:
        assert part in ran.err


@pytest.mark.parametrize("mode", modes())
def test_help_documents_every_option(mode: str, cli: CommandLine) -> None:
    """`--mode M --help all` shows the options of that mode, each with a text and a default."""
    ran = cli(f"--mode {mode} --help all")
    assert ran.code == 0
    for name in option_fields(load(mode).Config):
        assert f"--{name.replace('_', '-')}" in ran.out
    assert ran.out.count("default:") >= len(option_fields(load(mode).Config))


PAGES = [f"--mode {mode} --help" for mode in modes()]
PAGES += [
    *(f"{command} --help" for command in list(PLACES)[:-1]),
    *(f"--help {topic}" for topic in TOPICS),
    "",
]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("asked", PAGES)
def test_help_fits_the_terminal(
    asked: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is wider than the terminal, and a text is broken only where the next word does not fit."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("UV", "uv")  # the longest way to call it
    printed = page(asked, capsys).splitlines()
    assert max(map(len, printed)) <= width
    for line, following in pairwise(printed):
        indent = len(following) - len(following.lstrip())
        if indent >= 24 and len(line) - len(line.lstrip()) == indent:  # a text that goes on
            # The default stays in one piece: `(default: 3)`.
            first = re.match(r"\(default: \S+|\S+", following.lstrip())
            assert first
            assert len(line) + 1 + len(first[0]) > width


def page(asked: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command line prints."""
    try:
        code = main(asked.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("asked", PAGES)
def test_the_examples_can_be_copied(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each page of help has examples; what they ask for exists, also where a line is broken."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("UV", raising=False)
    examples = re.findall(r"^  python (main\.py .*(?<!\\)\n)", page(asked, capsys).replace("\\\n", ""), re.M)
    assert examples or asked.startswith("--help")
    for example in examples:
        _, *arguments = shlex.split(example)
        if "runs/NAME/config.yaml" in arguments:
            arguments[:2] = []
        command, rest = commands.asked(arguments)
        if command == "run" and "--help" not in rest:
            cfg = parse(rest)
            assert "--mode" not in asked or "--mode" not in arguments or cfg.mode == asked.split()[1]
        for file in (word for word in arguments if word.endswith(".yaml") and not word.startswith("my/")):
            assert (ROOT / file).is_file()


@pytest.mark.parametrize("mode", modes())
def test_help_begins_with_the_options_of_the_mode(mode: str, cli: CommandLine) -> None:
    """What a strategy adds to the options of all comes before them, and its example uses it."""
    ran = cli(f"--mode {mode} --help all")
    common = option_fields(TrainConfig)
    own = [f"--{name.replace('_', '-')} " for name in option_fields(load(mode).Config) if name not in common]
    before, _, after = ran.out.partition("Options of every run:")
    for option in own:
        assert f"\n  {option}" in before or f"\n  {option.strip()}\n" in before
        assert f"\n  {option}" not in after
    example = ran.out.partition("\nOptions of ")[0]
    shown_first = re.findall(r"^  (--[\w-]+)", before.partition(f"Options of {mode}:")[2], re.M)
    assert any(f"{option} " in example for option in shown_first)


@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize(
    "asked", [f"{SIM} --steps 2 --out {{0}}", "list --help", "", "--help all", "version", "--help"]
)
def test_a_page_may_be_cut_short_by_its_reader(asked: str, tmp_path: Path) -> None:
    """`--help | head` and `--help >&-` print nothing on standard error and end with 0, as all commands do."""
    reading, writing = os.pipe()
    os.close(reading)  # the reader has left before the first line
    for closed in ("", ">&-"):
        command = f"{sys.executable} {ROOT}/main.py {asked.format(tmp_path)} {closed}"
        ran = subprocess.run(  # noqa: S602 - what is closed is closed by a shell
            command, shell=True, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
    os.close(writing)


def test_the_front_page_is_one_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`main.py` alone starts nothing and prints what `--help` does: at most 45 lines of 80 columns, with each
    mode, topic and command, and the defaults of the options that it names.
    """
    monkeypatch.setenv("COLUMNS", "80")
    printed = page("", capsys)
    assert page("--help", capsys) == printed
    assert len(printed.splitlines()) <= 45
    assert max(map(len, printed.splitlines())) <= 80
    words = set(re.findall(r"[\w-]+", printed))
    assert {*modes(), *workloads(), *TOPICS} <= words
    assert [line.split()[0] for line in printed.partition("Commands;")[2].splitlines()[1:-2]] == [*PLACES]
    defaults, below = options(parse([])), printed.partition("--mode ")[2]
    shown = re.findall(r"--([a-z-]+)(?:(?!--)[^()])*\(([\w.]+)\)", f"--mode {below}")
    assert len(shown) >= 8
    for name, default in shown:
        assert str(defaults[name.replace("-", "_")]) == default, name


def test_each_option_has_one_topic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help TOPIC` of all topics together shows each option that is not hidden once, `--help all` all."""
    monkeypatch.setenv("COLUMNS", "100")

    def options_on(topic: str) -> list[str]:
        return re.findall(r"^  (--[\w-]+)", page(f"--mode ssp --workload gpt --help {topic}", capsys), re.M)

    of_topics = [option for topic in TOPICS if topic != "all" for option in options_on(topic)]
    known = option_fields(config_of("ssp", None, "gpt"))
    seen = [option for option in known.values() if HIDDEN not in option.rules]
    assert len(of_topics) == len(set(of_topics)) == len(seen) < len(known) == len(options_on("all"))
    assert {*of_topics} < {*options_on("all")}


@pytest.mark.parametrize(
    ("topic", "hint"), [("netwrk", "did you mean network?"), ("slack", "choose from mode, ")]
)
def test_a_topic_that_is_none_is_refused_with_a_hint(topic: str, hint: str, cli: CommandLine) -> None:
    """One line that names it, and what is near or there."""
    ran = cli(f"--help {topic}")
    assert ran.code == 2
    assert ran.err.startswith(f"main.py: --help {topic}: is not a topic; {hint}")


def test_the_version_is_printed(cli: CommandLine) -> None:
    """`version` prints one line with the version of what is installed, and runs nothing."""
    ran = cli("version")
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"dsgd-lab \d+\.\d+\.\d+\n", ran.out)
    assert not cli.out.exists()


@pytest.mark.parametrize("mode", modes())
def test_a_rule_of_effect_names_options_and_values_that_exist(mode: str) -> None:
    """Each value is a choice of a known option or a workload that is built in: `OnlyWith(workload="digit")`
    would refuse it always.
    """
    known = option_fields(load(mode).Config)
    for option in known.values():
        for rule in option.rules:
            if isinstance(rule, OnlyWith | NotWith):
                for other, values in (rule.allowed if isinstance(rule, OnlyWith) else rule.others).items():
                    choices = BUILT_IN if other == "workload" else known[other].choices
                    assert set(values) <= set(choices), (option.name, other)


@pytest.mark.parametrize("mode", modes())
def test_what_is_changed_is_checked_and_parsed_again(mode: str) -> None:
    """`dataclasses.replace` obeys the rules, and a text that is replaced is not remembered."""
    cfg = load(mode).Config(mode=mode)
    for wrong in ({"momentum": 1.0}, {"num_workers": "4"}, {"steps": True}, {"engine": "cloud"}):
        option, value = next(iter(wrong.items()))
        with pytest.raises(ValueError, match=f"--{option.replace('_', '-')} {value}: must "):
            replace(cfg, **wrong)
    slower = replace(cfg.timing, compute_time="constant:2", slowdown="0=4")
    assert (slower.compute_law.mean_s, slower.slowdowns) == (2.0, {0: 4.0})
    assert (cfg.timing.compute_law.mean_s, cfg.timing.slowdowns) == (1.0, {})


def test_a_text_is_parsed_once(tmp_path: Path) -> None:
    """What an option's text means is one value: the trace is gone, its times are not, in a copy too."""
    path = tmp_path / "times.csv"
    path.write_text("seconds\n3\n")
    timing = TimingConfig(compute_time=f"trace:{path}")
    path.unlink()
    assert timing.compute_law is timing.compute_law
    assert pickle.loads(pickle.dumps(timing)).compute_law.mean_s == 3


def test_what_is_not_needed_is_not_imported(cli: CommandLine) -> None:
    """Commands that compute nothing, and runs without weights, do without the seconds that torch and ray
    take; a simulated run leaves ray out.
    """
    code = (
        "import sys, main\n"
        "for arguments in (['--help'], ['--steps', '0']):\n"
        "    try: main.main(arguments)\n"
        "    except SystemExit: pass\n"
        "assert not {'torch', 'ray', 'sklearn'} & set(sys.modules), 'imported too much'\n"
        f"arguments = '--engine sim --steps 2 --quiet --out {cli.out}'.split()\n"
        "assert main.main([*arguments, '--workload', 'none']) == 0\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
        "assert main.main(arguments) == 0\n"
        "assert 'ray' not in sys.modules\n"
    )
    run_python("-c", code).check_returncode()
