"""Execute docs/hospital.ipynb and write the page docs/hospital.md with its outputs.

python docs/notebook.py
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parent
NOTEBOOK, PAGE, IMAGE = DOCS / "hospital.ipynb", DOCS / "hospital.md", DOCS / "images" / "hospital-{}.png"
NOTE = """!!! note
    This page is an executed notebook, [hospital.ipynb](hospital.ipynb). A test executes it again.
"""


def execute(notebook: Any, folder: Path) -> Any:
    """Return the notebook with the outputs of a kernel that starts in a folder."""
    os.environ["FEDUHB_STATE"] = str(folder / "state")
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
        cell.get("outputs", [])[:] = [o for o in cell.get("outputs", []) if o.get("name") != "stderr"]
    return notebook


def list_texts(notebook: Any) -> list[str]:
    """Return what each code cell printed or returned, as text; dates and digests are masked."""
    return [
        _mask("".join(map(_find_text, cell.outputs))) for cell in notebook.cells if cell.cell_type == "code"
    ]


def _find_text(output: Any) -> str:
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return "" if "image/png" in data else data.get("text/plain", "")


def _mask(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d(T[\d:+]+)?", "DATE", text)
    return re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)  # the config names the folder


def write_page(notebook: Any) -> dict[Path, bytes]:
    """Return the page and its images, by path."""
    parts, files = [], dict[Path, bytes]()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                path = Path(str(IMAGE).format(len(files) + 1))
                files[path] = base64.b64decode(data["image/png"])
                parts.append(f"![The figure that the code above draws](images/{path.name})")
            elif "text/html" in data and "<table" in data["text/html"]:
                parts.append(_to_markdown(data["text/html"]))
            elif text := _find_text(output).rstrip():
                parts.append(f"```text\n{text}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n\n")
    return {PAGE: f"{title}\n\n{NOTE}\n{rest}\n".encode(), **files}


def _to_markdown(html: str) -> str:
    """Return the table of a DataFrame as Markdown."""
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        for row in re.findall(r"<tr.*?</tr>", html, re.DOTALL)
    ]
    lines = [f"| {' | '.join(cell.strip() for cell in row[1:])} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * (len(rows[0]) - 1), *lines[1:]])


def main() -> int:
    """Execute the notebook, and write it and its page."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(nbformat.read(NOTEBOOK, 4), Path(folder))
    nbformat.write(notebook, NOTEBOOK)
    for path, content in write_page(notebook).items():
        path.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
