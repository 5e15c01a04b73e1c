"""Data sets that are published as files: which, with which checksums, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """The original files of a data set. A file counts as such by its SHA-256, wherever it comes from."""

    name: str
    title: str  # as people write it
    files: Mapping[str, str]  # SHA-256 by file name, in the order in which they are read
    url: str  # the address before the name of a file or of the archive
    archive: str | None = None  # a .tar.gz that holds the files; None: they are published one by one
    unpacked: str | None = None  # the folder that the archive makes

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of folders that the files usually lie in."""
        return (self.name,) if self.unpacked is None else (self.name, self.unpacked)

    @property
    def listed(self) -> str:
        """The names of the files, for an error."""
        return ", ".join(self.files)


MNIST = Published(
    "mnist",
    "MNIST",
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
CIFAR10 = Published(
    "cifar10",
    "CIFAR-10",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "https://www.cs.toronto.edu/~kriz/",
    archive="cifar-10-binary.tar.gz",
    unpacked="cifar-10-batches-bin",
)
PUBLISHED = {each.name: each for each in (MNIST, CIFAR10)}
