"""Data to train on: files of yours, read where they lie, and what packages bring along.

Nothing is downloaded at run time. Labelled samples are tuples of arrays (x, y); text is a sequence of token
ids, which `Windows` cuts into samples.

    train, test = labelled("images/")             # .npy, .npz, .parquet, idx
    train, test = texts("notes.txt")              # .txt, .bin
    train, test = fashion()                       # mnist(), shakespeare(), python_sources()
    Problem(module, loss, Windows(train.ids, 64), Windows(test.ids, 64))
"""

from dsgd.datasets.array_files import arrays as arrays
from dsgd.datasets.local_files import DataError as DataError
from dsgd.datasets.shipped import fashion as fashion
from dsgd.datasets.shipped import shakespeare as shakespeare
from dsgd.datasets.splits import Split as Split
from dsgd.datasets.splits import split_samples as split_samples
from dsgd.datasets.splits import split_text as split_text
from dsgd.datasets.token_files import Tokens as Tokens
from dsgd.datasets.token_files import tokens as tokens
from dsgd.datasets.windows import Windows as Windows
