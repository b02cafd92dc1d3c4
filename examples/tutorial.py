"""docs/tutorial.md as a program: runs its blocks one after the other in a folder, where they draw their pictures.

python examples/tutorial.py docs/images
"""

import argparse
import os
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"


def blocks() -> list[tuple[str, str]]:
    """The title of each section, and its block of Python."""
    return re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=".", help="where the pictures go")
    folder = parser.parse_args().folder
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for title, block in blocks():
        exec(compile(block, f"{PAGE.name}: {title}", "exec"), {"__name__": title})
        print(title)
    print("pictures:", *sorted(path.name for path in Path().glob("*.png")))


if __name__ == "__main__":
    main()
