"""Tables in Parquet files: a column of labels, and one or more of features."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsgd.models.datasets.local_files import DataError, local, reading
from dsgd.models.datasets.mapped import Array
from dsgd.models.datasets.roles import is_label


def read_parquet(path: str) -> Iterator[tuple[str, Array]]:
    """Yield the features x and the labels y of a table, in memory.

    y: the column of that name (or label, target, class), else the last one. x (N, F) float32: the others; if
    that is one column of lists of equal lengths or of arrays, (N, ...) as it is. Raises DataError.
    """
    import polars
    from polars.exceptions import PolarsError

    with reading(path, PolarsError):
        table = polars.read_parquet(local(path), glob=False, hive_partitioning=False)
    if len(table.columns) < 2:
        raise DataError(f"{path}: has {len(table.columns)} column; a table needs features and a label")
    if empty := [column.name for column in table if column.null_count()]:
        raise DataError(f"{path}: column {empty[0]} has rows without a value")
    label = next((name for name in table.columns if is_label(name)), table.columns[-1])
    features = table.drop(label)
    (first, *more) = features
    if isinstance(first.dtype, polars.List) and not more:
        lengths = first.list.len().unique()
        if len(lengths) != 1:
            raise DataError(f"{path}: the lists of column {first.name} differ in length")
        first = first.list.to_array(lengths[0])
    if isinstance(first.dtype, polars.Array) and not more:
        x = first.to_numpy()
    else:
        for column in features:
            if not (column.dtype.is_numeric() or column.dtype == polars.Boolean):
                raise DataError(f"{path}: column {column.name} is of {column.dtype}; give numbers")
        x = features.to_numpy().astype(np.float32)
    yield "x", x
    yield "y", table[label].to_numpy()
