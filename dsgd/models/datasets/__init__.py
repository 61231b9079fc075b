"""Data to train on: files of a user, and what packages bring along.

Labelled samples are tuples of arrays (x, y). A text is a sequence of token ids, which `Windows` cuts into
samples. Nothing is downloaded, except a user's own s3:// paths.

    train, test = labelled("images/")      # .npy, .npz, .parquet, idx
    train, test = texts("notes.txt")       # .txt, .bin
    train, test = fashion()                # or mnist(), shakespeare(), python_sources()
"""

from dsgd.models.datasets.array_files import arrays as arrays
from dsgd.models.datasets.array_files import labelled as labelled
from dsgd.models.datasets.byte_pairs import BytePairs as BytePairs
from dsgd.models.datasets.shipped import fashion as fashion
from dsgd.models.datasets.shipped import mnist as mnist
from dsgd.models.datasets.shipped import python_sources as python_sources
from dsgd.models.datasets.shipped import shakespeare as shakespeare
from dsgd.models.datasets.splits import Split as Split
from dsgd.models.datasets.splits import about as about
from dsgd.models.datasets.splits import split_samples as split_samples
from dsgd.models.datasets.splits import split_text as split_text
from dsgd.models.datasets.splits import texts as texts
from dsgd.models.datasets.token_files import Tokens as Tokens
from dsgd.models.datasets.token_files import Windows as Windows
from dsgd.models.datasets.token_files import tokens as tokens
from dsgd.models.datasets.user_files import DataError as DataError
