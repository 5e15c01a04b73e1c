"""Errors a user can act on: each says what is wrong, which one, and what to do."""

from __future__ import annotations


class FeduhbError(Exception):
    """Anything `feduhb` refuses, in words for a person. The command line prints it in one line and exits 2."""


class ConfigError(FeduhbError):
    """A setting that cannot be."""


class RequestError(FeduhbError):
    """A request to forget that cannot be served as it stands."""


class DataError(FeduhbError):
    """A data set that is missing, damaged, or of the wrong shape."""


class ModelError(FeduhbError):
    """A module whose training cannot be exact or cannot be flattened."""


class AnswerError(FeduhbError):
    """A client answered with something that must not be averaged in, or nobody answered."""


class AggregationError(FeduhbError):
    """A rule for combining updates that cannot work on these answers."""


class RunFolderError(FeduhbError):
    """A run folder that is missing, unfinished, taken or damaged."""


class CheckpointError(RunFolderError):
    """A checkpoint that is missing or damaged."""


class HistoryError(FeduhbError):
    """A history that is missing, forgotten, damaged, or another run's."""


class StorageError(FeduhbError):
    """The disk refused."""
