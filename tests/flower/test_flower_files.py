"""The files of a Flower run are read by their types: another shape is one line of advice, never a traceback."""

import pytest

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import RunFolderError
from flower.gridding import make_grid

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
FEDERATION = ragged()
FOLDER = object()
BAD = {
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "empty": b"",
    "half": b'{"a": ',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep in its place": b'{"0": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "a folder": FOLDER,
    "other values": b'{"0": 3, "asked": 4}',
    "other keys": b'{"x": {"cat": "late"}, "asked": ""}',
    "a lone surrogate": b'{"0": {"cat": "\\ud800"}, "asked": "\\ud800"}',
}


def unlearn(folder):
    strategy = flower.FedUHB(
        "bee", epochs=1, stop=feduhb.never, seed=7, local=LOCAL, timeout=5, checkpoint=folder
    )
    return strategy.start(make_grid(FEDERATION, keyed=True), flower.fresh_arrays(FEDERATION.model, 7), 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a function that copies a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    unlearn(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def spoil(finished, folder, name, content):
    for file, data in finished.items():
        (folder / file).write_bytes(data)
    (folder / name).unlink(missing_ok=True)
    if content is FOLDER:
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", ["names.json", "left_out.json", "request.json", "limits.json"])
@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_file_of_another_shape_is_refused_in_one_line(name, content, finished, tmp_path):
    if name == "limits.json" and content == BAD["other keys"]:
        content = b'{"examples": 3}'  # a later version may add keys
    if name == "limits.json" and content == BAD["other values"]:
        content = b'{"examples": {"cat": -3}}'
    if name == "limits.json" and content == BAD["a lone surrogate"]:
        content = b'{"examples": {"\\ud800": 3}}'
    spoil(finished, tmp_path, name, content)
    what = "cannot be read: Is a directory" if content is FOLDER else "is damaged"
    with pytest.raises(RunFolderError, match=f"{name} {what}; (delete it|restore it)") as caught:
        unlearn(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_request_that_cannot_be_parsed_is_damage(finished, tmp_path):
    text = finished["request.json"].decode()
    spoil(finished, tmp_path, "request.json", text.replace('"request": "', '"request": "bee:x-y,').encode())
    with pytest.raises(RunFolderError, match=r"request.json is damaged; restore it from a backup"):
        unlearn(tmp_path)


def test_folders_without_the_files_of_this_version_open(finished, tmp_path):
    spoil(finished, tmp_path, "limits.json", b"{}")
    (tmp_path / "limits.json").unlink()
    assert len(unlearn(tmp_path).rounds) == 1


def test_a_checkpoint_folder_that_cannot_be_read_is_one_line(tmp_path):
    """As a folder of another user, which root may read: the name is too long for the system."""
    with pytest.raises(RunFolderError, match=r"x cannot be read: File name too long; check its permissions"):
        unlearn(tmp_path / ("x" * 300))
