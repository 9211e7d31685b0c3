"""Logged data: what a data set is, and how one is found by its name."""

from fat2thin.data.dataset import Dataset
from fat2thin.data.readers import Reader, load, names, reader, register_reader

__all__ = ["Dataset", "Reader", "load", "names", "reader", "register_reader"]
