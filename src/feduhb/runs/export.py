"""Export the model of a run: safetensors, torch.save, ONNX, its model card, or a folder with weights and card."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from safetensors.torch import save
from torch import Tensor, nn

from feduhb.core.inputs import Inputs, list_tensors
from feduhb.core.modules import MEAN, is_statistic
from feduhb.errors import ConfigError, ModelError, RunFolderError, StorageError
from feduhb.report.card import make_card
from feduhb.runs.checkpoint import digest_weights, load_params, separate
from feduhb.runs.files import disk_errors, make_private_folder, write_atomically
from feduhb.runs.folder import RunFolder, versions
from feduhb.runs.trust import list_code, require_code

if TYPE_CHECKING:
    from feduhb.runs.run import Run

Format = Literal["safetensors", "pt", "onnx", "card", "folder"]
SUFFIXES: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".pt": "pt",
    ".pth": "pt",
    ".onnx": "onnx",
    ".md": "card",
    "": "folder",
}
WEIGHTS, CARD = "model.safetensors", "README.md"  # in a folder
State = Mapping[str, Tensor]


def choose_format(path: Path, format: str | None) -> Format:
    """Return the format by its name, or by the suffix of a path; raise ConfigError if there is none."""
    if format is None and path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    if format in get_args(Format):
        return format  # pyright: ignore[reportReturnType]
    what = f"{path} has the suffix {path.suffix!r}" if format is None else f"format is {format!r}"
    raise ConfigError(
        f"{what}; write .safetensors, .pt, .onnx, .md or no suffix (a folder), or give format: {', '.join(get_args(Format))}"
    )


def can_open(folder: RunFolder) -> bool:
    """Return whether a run's data can be read without code, or by code that its user trusts."""
    config = folder.config()
    if config.get("federation") is None:
        return False
    if not list_code(config):
        return True
    try:
        return bool([require_code(folder, part) for part in list_code(config)])
    except RunFolderError:
        return False


def export_run(run: Run, path: str | Path, *, format: str | None = None, overwrite: bool = False) -> Path:
    """Write the model of a run in a format, and return the path. `Run.export` describes the arguments."""
    about = _describe(run.method.name, run.method.exact, run.seed, digest_weights(run.params))

    def make(kind: Format) -> bytes:
        if kind == "card":
            return run.card().encode()
        if kind == "onnx":
            rows = torch.arange(2) % len(run.federation.test)  # torch takes a batch of one for a constant
            return make_onnx(run.model(), run.federation.test.batch(rows)[0])
        return _pack(kind, run.model().state_dict(), about)

    return _write(_check_path(path), format, overwrite, make)


def export_folder(
    folder: str | Path, path: str | Path, *, format: str | None = None, overwrite: bool = False
) -> Path:
    """Write the weights or the card of a run from its folder alone, without its data; return the path.

    The weights have the names in result.json. A parameter that the module holds under two names is written once. ONNX, and
    weights of a module with frozen parameters or constant buffers, need the module: raise an error.
    """
    files, target = RunFolder(Path(folder)), _check_path(path)

    def make(kind: Format) -> bytes:
        if kind == "card":
            return make_card(files.path).encode()
        if kind == "onnx":
            raise RunFolderError(
                f"ONNX needs the module, but the data of {files.path} came from Python code; {_advise(files, target)}"
            )
        result = files.result()
        about = _describe(
            result["method"], result["exact"], files.config().get("seed", 0), result["weights_sha256"]
        )
        return _pack(kind, _read_state(files, target), about)

    return _write(target, format, overwrite, make)


def make_onnx(model: nn.Module, x: Inputs) -> bytes:
    """Return a module as an ONNX file, for batches of any size.

    Args:
        x: two or more examples. Names of a dict become the names of the inputs; a tuple's are input_0, input_1, ....
    """
    import onnx

    parts, batch = list_tensors(x), torch.export.Dim("batch")
    several = [f"input_{place}" for place in range(len(parts))]
    names = list(x) if isinstance(x, dict) else several if isinstance(x, tuple) else ["input"]
    args, named = ((), x) if isinstance(x, dict) else (tuple(parts), {})
    axis = {0: batch}
    try:
        taken = inspect.signature(model.forward).bind(*(axis for _ in args), **dict.fromkeys(named, axis))
        with _silence():
            made = torch.onnx.export(
                model, args, kwargs=named, dynamo=True, dynamic_shapes=dict(taken.arguments),
                input_names=names, output_names=["output"], verbose=False,
            )  # fmt: skip
            assert made is not None  # noqa: S101 (it is for a call without a file)
            onnx.checker.check_model(made.model_proto, full_check=True)
            return made.model_proto.SerializeToString()
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be written as ONNX ({_find_cause(error)}); export .safetensors instead, or change its forward"
        ) from error


@contextlib.contextmanager
def _silence() -> Generator[None]:
    """Keep torch from warning about itself, logging what it does without, and printing a model that it cannot write."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    printed = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _find_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(c for c in text if c.isprintable())[:160]


def _describe(method: str, exact: bool, seed: int, digest: str) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    return {
        "format": "pt",
        "method": method,
        "exact": str(exact).lower(),
        "seed": str(seed),
        "weights_sha256": digest,
        "feduhb": versions()["feduhb"],
    }


def _pack(kind: Format, state: Mapping[str, Any], about: dict[str, str]) -> bytes:
    """Return named tensors as a file. A safetensors file has tied tensors under each of their names."""
    if other := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise ModelError(f"{other[0]} of the model's state_dict is not a tensor; keep tensors only in it")
    if kind == "safetensors":
        return save(separate(dict(state)), about)
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def _read_state(files: RunFolder, target: Path) -> State:
    """Return the named weights and statistics of a run from its folder; raise RunFolderError if others are missing there."""
    carried, layout = files.config().get("start", {}).get("carried"), files.result().get("layout")
    if carried:
        raise RunFolderError(
            f"{files.path} has frozen parameters or constant buffers ({', '.join(carried[:3])}), which its folder does not hold; "
            f"{_advise(files, target)}"
        )
    if not layout:
        raise RunFolderError(
            f"{files.path} is of an earlier version, which did not record the names of the weights; {_advise(files, target)}"
        )
    files.check_weights()
    params, sizes = load_params(files.state_path), [torch.Size(shape).numel() for _, shape in layout]
    if sum(sizes) != params.numel():
        raise RunFolderError(f"{files.result_path} does not fit the weights beside it; restore a backup")
    parts = zip(layout, params.split(sizes), strict=True)
    found = {name: part.view(torch.Size(shape)).clone() for (name, shape), part in parts}
    means = [name for name in found if is_statistic(name) and name.endswith(MEAN)]
    counters = {f"{name.removesuffix(MEAN)}num_batches_tracked": torch.tensor(0) for name in means}
    return {**found, **counters}


def _advise(files: RunFolder, target: Path) -> str:
    return (
        "name a function that returns the federation: --data-from my_data.py:make, or export it in Python: "
        f"feduhb.open_run({str(files.path)!r}, federation).export({str(target)!r})"
    )


def _check_path(path: Any) -> Path:
    if not isinstance(path, str | Path) or path == "" or "\0" in str(path):
        raise ConfigError(f"path is {path!r}; give the path of a file, such as 'model.safetensors'")
    return Path(path)


def _write(path: Path, format: str | None, overwrite: bool, make: Callable[[Format], bytes]) -> Path:
    """Write the files of an export. All are made before the first is written."""
    kind = choose_format(path, format)
    if kind == "onnx" and None in map(importlib.util.find_spec, ("onnx", "onnxscript")):
        raise ConfigError(
            "ONNX needs two more packages; in a clone: pip install -c constraints.txt '.[onnx]'"
        )
    wanted: dict[Path, Format] = {path: kind}
    if kind == "folder":
        wanted = {path / WEIGHTS: "safetensors", path / CARD: "card"}
    for target in wanted:
        _check_target(target, overwrite=overwrite)
    made = {target: make(one) for target, one in wanted.items()}
    try:
        if kind == "folder":
            make_private_folder(path)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        for target, data in made.items():
            write_atomically(target, data)
    except StorageError as error:
        cause = error.__cause__
        reason = "it is a link" if path.is_symlink() else getattr(cause, "strerror", None) or cause
        raise StorageError(f"cannot write {path}: {reason}; choose another path") from error
    return path


def find_run_around(target: Path) -> Path | None:
    """Return the run folder in which a path lies, or None. Folders further up count if they hold a run's rounds or tombstone."""
    if RunFolder(target.parent).exists():
        return target.parent
    around = (RunFolder(path) for path in [*target.absolute().parents][1:])
    files = ((one.path, (one.rounds_path, one.tombstone_path)) for one in around)
    return next((path for path, some in files if any(map(os.path.lexists, some))), None)


def _check_target(target: Path, *, overwrite: bool) -> None:
    """Raise StorageError if a file must not be written there."""
    with disk_errors(target):
        if (home := find_run_around(target)) is not None:
            raise StorageError(f"{home} is a run folder, in which feduhb alone writes; choose another path")
        if target.is_dir() and not target.is_symlink():
            raise StorageError(f"{target} is a folder; give the path of a file")
        if os.path.lexists(target) and not overwrite:
            raise StorageError(
                f"{target} is there already; choose another path, or overwrite it: overwrite=True (--overwrite)"
            )
