"""Errors that a user can act on. Each message states what is wrong, where, and what to do."""

from __future__ import annotations


class FeduhbError(Exception):
    """The base class of the errors below. The command line prints them in one line and exits with status 2."""


class ConfigError(FeduhbError):
    """A setting is invalid."""


class RequestError(FeduhbError):
    """A request to forget cannot be served."""


class DataError(FeduhbError):
    """Data is missing, damaged, or of the wrong shape."""


class ModelError(FeduhbError):
    """A module cannot be trained exactly or cannot be flattened."""


class AnswerError(FeduhbError):
    """A client sent an invalid update, or no client answered."""


class DivergedError(AnswerError):
    """A client's update, or the model, is not finite."""


class AggregationError(FeduhbError):
    """An aggregation rule cannot combine these updates."""


class RunFolderError(FeduhbError):
    """A run folder is missing, unfinished, in use or damaged."""


class CheckpointError(RunFolderError):
    """A checkpoint is missing or damaged."""


class HistoryError(FeduhbError):
    """A history is missing, erased, damaged, or belongs to another run."""


class StorageError(FeduhbError):
    """A file cannot be written."""


__all__ = [
    "AggregationError", "AnswerError", "CheckpointError", "ConfigError", "DataError", "DivergedError", "FeduhbError", "HistoryError",
    "ModelError", "RequestError", "RunFolderError", "StorageError",
]  # fmt: skip
