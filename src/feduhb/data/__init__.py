"""Federations and where they come from: data sets, partitions, requests to forget, planted backdoors and canaries."""

from typing import TYPE_CHECKING

from feduhb.core.lazy import import_lazily

if TYPE_CHECKING:
    from feduhb.data.federation import Examples as Examples
    from feduhb.data.load import Dataset as Dataset
    from feduhb.data.load import list_datasets as list_datasets
    from feduhb.data.load import load_dataset as load_dataset
    from feduhb.data.partition import make_client_ids as make_client_ids
    from feduhb.data.partition import parse_partition as parse_partition

__getattr__, __dir__, __all__ = import_lazily(
    __name__,
    {
        "federation": ["Examples"],
        "load": ["Dataset", "list_datasets", "load_dataset"],
        "partition": ["make_client_ids", "parse_partition"],
    },
)
