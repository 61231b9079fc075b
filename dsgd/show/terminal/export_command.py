"""The command line of exports: `main.py --export RUN FILE.safetensors`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsgd.process.files import whole_file
from dsgd.process.interruptions import Interruptions
from dsgd.process.messages import print_page
from dsgd.show.terminal.cli import UsageError
from dsgd.show.terminal.run_to_use import RUN, run_to_use
from dsgd.show.terminal.usage import Parser, usage_errors


def export(arguments: Sequence[str], _: Interruptions) -> int:
    """Write the tensors of what a run trained to a file, say what is in it, and return the exit code.

    Raises UsageError, in one line, for anything that is wrong; the file is then as it was.
    """
    parser = Parser(
        "--export",
        "Write what a run trained to a safetensors file: the tensors of the module's state_dict() by their "
        "names, and in its metadata the run. safetensors.torch.load_model(module, FILE) reads it.",
    )
    parser.add_argument("--export", nargs=2, metavar=("RUN", "FILE"), required=True, help=RUN)
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there")
    given = parser.parse(arguments)
    source, file = given.export[0], Path(given.export[1])
    if file.suffix != ".safetensors":
        raise UsageError(f"--export {file}: is a safetensors file; name it {file.stem}.safetensors")
    if file.exists() and not given.overwrite:
        raise UsageError(f"--export {file}: is there already; name another file, or give --overwrite")
    if not file.parent.is_dir():
        raise UsageError(f"--export {file}: there is no folder {file.parent}; make it, or name another file")
    from dsgd.running.named_tensors import named_tensors, to_safetensors

    with usage_errors():
        run = run_to_use("--export", source)
        tensors, same = named_tensors(run.module())
    with whole_file(file, "name another file") as content:
        content.write(to_safetensors(tensors, {**run.facts, **same}))
    numbers = sum(tensor.numel() for tensor in tensors.values())
    print_page(f"{run.in_words}\nwritten   {file}: {len(tensors)} tensors, {numbers:,} numbers")
    return 0
