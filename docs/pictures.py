"""Draws the pictures of the pages, by running their blocks of Python that save one.

python docs/pictures.py docs/images
"""

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent


def main(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
            if "savefig(" in block:
                exec(compile(block, page.name, "exec"), {"__name__": page.stem})


if __name__ == "__main__":
    main(sys.argv[1])
