"""Logged data: the `Dataset` class, loading by name or path, and file readers."""

from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.d4rl import normalised_score, read_hdf5
from fat2thin.data.formats.mapped import read_mapped, save_mapped
from fat2thin.data.formats.minari import read_minari
from fat2thin.data.formats.npz import read_npz, save_npz
from fat2thin.data.memory import remember
from fat2thin.data.operations import Box, RawLog, assemble
from fat2thin.data.readers import (
    Reader,
    load,
    names,
    reader,
    register_folder,
    register_reader,
    register_suffix,
)
from fat2thin.data.safe_files import DataFileError

__all__ = [
    "Box", "DataFileError", "Dataset", "RawLog", "Reader", "assemble", "load", "names",
    "normalised_score", "read_hdf5", "read_mapped", "read_minari", "read_npz", "reader",
    "register_folder", "register_reader", "register_suffix", "remember", "save_mapped", "save_npz",
]  # fmt: skip
