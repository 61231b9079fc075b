"""What a workload's file makes: a torch module, its loss and its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsgd.core.shards import Indices

if TYPE_CHECKING:
    from torch import nn

    from dsgd.core.routing import Routing


class ProblemError(ValueError):
    """A problem cannot be trained; the message is one line, without the workload's name."""


class TrialGradient(NamedTuple):
    """What a gradient that was tried has written to, besides trained parameters and running statistics."""

    carried: tuple[str, ...] = ()
    """The tensors of a module that are part of a worker's state, by name."""
    rows: int = 0
    """How many vectors (D,) of that state they take, as bits."""
    notes: tuple[str, ...] = ()
    """What else it has changed, and cannot be kept, in a line each."""
    left_out: tuple[str, ...] = ()
    """The trained parameters that it did not reach, by name."""


class Problem(NamedTuple):
    """A module to train, and on what.

    The data are a tuple of tensors or arrays with one row a sample, like (x, y), or a map-style dataset of
    torch: len() and [i]. Items that are tuples are given to the loss in parts, others, like dicts, in one.
    """

    module: nn.Module
    """With its initial weights; torch was seeded with the run's seed before the file made it."""
    loss: Callable[..., Any]
    """loss(module, *batch): the mean over the mini-batch's samples; or a total and a count, where the mean is
    over something else of which a sample has more or less, like tokens that are no padding."""
    train: Any
    """The data of all workers, which are split among them."""
    test: Any
    """The data of evaluations."""
    score: Callable[..., Any] | None = None
    """score(module, *batch): what is reported beside the loss, like the accuracy: a mean, or a total and a
    count, as well."""
    bytes_per_token: float | None = None
    """Of a language model, whose loss is in nats a token: bits a byte and the perplexity are shown, too."""
    about: Mapping[str, Any] = MappingProxyType({})
    """What the run's record keeps of the model and the data, like their sizes; numbers and text."""
    sample: Callable[..., str] | None = None
    """Of a language model: sample(module, prompt, tokens=, temperature=, seed=), the text that follows the
    prompt (dsgd/models/networks/sampling.py makes one)."""
    score_at_once: bool = False
    """Whether the score is no mean, like a correlation: it is computed of all test data in one call."""
    collate: Callable[[list[Any]], Any] | None = None
    """collate(items): a mini-batch of a dataset's items, where torch's default_collate makes none."""
    routing: Routing | None = None
    """Of a module with mixtures of experts: where to find what they did. A module with those of
    dsgd/models/moe/mixture.py needs none."""
    score_name: str = "accuracy"
    """What the score is called, like R². Larger is better."""
    decode: Callable[[Any], Sequence[str]] | None = None
    """decode(output): what the module's output says of each sample, in words; `serve` sends it, too."""


def score_text(name: str, score: float, digits: int = 1) -> str:
    """Return a score in words, an accuracy in per cent.

    >>> score_text("accuracy", 0.95617), score_text("R²", 0.87412)
    ('accuracy 95.6%', 'R² 0.8741')
    """
    return f"{name} {score:.{digits}%}" if name == "accuracy" else f"{name} {score:.4g}"


def length(data: Any) -> int:
    """Return how many samples there are."""
    return len(data[0]) if isinstance(data, tuple) else len(data)


def labels(data: Any) -> Indices | None:
    """Return the samples' classes (N,): `targets` of whole numbers, of shape (N,) or (N, 1)."""
    classes = targets(data)
    if classes is None or classes.shape[1:] not in ((), (1,)) or not np.issubdtype(classes.dtype, np.integer):
        return None
    return classes.astype(np.int64).reshape(-1)


def targets(data: Any) -> NDArray[Any] | None:
    """Return where classes would be: torchvision's `targets`, or the second array."""
    found = getattr(data, "targets", None)
    if found is None:
        arrays = getattr(data, "tensors", data)
        if not isinstance(arrays, tuple) or len(arrays) < 2:
            return None
        found = arrays[1]
    return np.asarray(found)


def part(array: Any, rows: Indices) -> Any:
    """Return some rows of an array; of one that stays in its file, not read yet
    (dsgd/models/datasets/mapped.py).
    """
    later = getattr(array, "part", None)
    return later(rows) if later else array[rows]


class Collated:
    """A dataset with the function that puts its samples together."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:  # `targets` and `__getitems__`, if the dataset has them
        if name in ("dataset", "collate"):
            raise AttributeError(name)  # not yet, while it is unpickled
        return getattr(self.dataset, name)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]


def take(data: Any, rows: Sequence[int] | Any) -> tuple[Any, ...]:
    """Return the samples with these numbers as a mini-batch: what a loss gets after the module. Tensors have
    samples first.

    Raises ProblemError for samples that cannot be put together.
    """
    import torch
    from torch.utils.data import TensorDataset, default_collate

    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple):
        return tuple(tensor(array[rows]) for array in data)
    # Of dsgd.models.datasets.Windows: no sample is made alone.
    if at_once := getattr(data, "mini_batch", None):
        return tuple(torch.from_numpy(array) for array in at_once(rows))
    if many := getattr(data, "__getitems__", None):
        samples = many([int(row) for row in rows])
    else:
        samples = [data[int(row)] for row in rows]
    if isinstance(data, Collated):
        found = data.collate(samples)
        return tuple(found) if isinstance(found, tuple | list) else (found,)
    try:
        found = default_collate(samples)
    except (RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        pair = _unlike(samples, rows)
        raise ProblemError(
            f"its samples do not fit together ({why}{pair}); give its Problem a collate"
        ) from error
    return tuple(found) if isinstance(samples[0], tuple | list) else (found,)


def _unlike(samples: Sequence[Any], rows: Sequence[int]) -> str:
    """Return the numbers of two samples that cannot be put together, in words; empty if any two can."""
    from torch.utils.data import default_collate

    for sample, row in zip(samples, rows, strict=True):
        try:
            default_collate([samples[0], sample])
        except (RuntimeError, TypeError, ValueError):
            return f"; samples {rows[0]} and {row}"
    return ""


def tensor(rows: Any) -> Any:
    """Return rows of an array as a tensor; those of text as a list."""
    import torch

    if isinstance(rows, np.ndarray):
        if rows.dtype.kind in "USO":
            return rows.tolist()
        rows = rows.astype(rows.dtype.newbyteorder("="), copy=False)
    return torch.as_tensor(rows)


def moved_to(device: str, batch: Any) -> Any:
    """Return a mini-batch with the tensors in it, and whatever else can be moved, on a device."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: moved_to(device, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved_to(device, value) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(moved_to(device, value) for value in batch)
    return batch
