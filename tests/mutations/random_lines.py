"""Break random lines of files, to see how many of the breaks the tests find:

python -m tests.mutations.random_lines vecenv/facades --tests tests/vecenv/facades --count 30 --out before.json
python -m tests.mutations.random_lines --again before.json --tests tests/vecenv/facades   # only those found before
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mutations.__main__ import outcomes, parser
from tests.support.paths import ROOT

OPPOSITES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not"}


def mutants(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, broken line) for each line that has a simple break."""
    lines = source.splitlines()

    def replaced(node: ast.expr | ast.stmt, text: str) -> Iterator[tuple[int, str]]:
        if node.lineno == node.end_lineno:
            line = lines[node.lineno - 1].encode()
            broken = line[: node.col_offset] + text.encode() + line[node.end_col_offset :]
            yield node.lineno, broken.decode()

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield from replaced(node.test, f"(not ({ast.unparse(node.test)}))")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPPOSITES:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield from replaced(node, f"({left} {OPPOSITES[type(node.ops[0])]} {right})")
        elif isinstance(node, ast.BoolOp):
            joint = " or " if isinstance(node.op, ast.And) else " and "
            yield from replaced(node, "(" + joint.join(f"({ast.unparse(each)})" for each in node.values) + ")")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield from replaced(node, str(node.value + 1))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from replaced(node, "pass")
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from replaced(node, "return None")
        elif isinstance(node, ast.AugAssign):
            yield from replaced(node, "pass")


def draw(paths: list[str], count: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` mutations, in the form of mutations.toml, of different lines of these files and folders."""
    files = sorted(
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    )
    found = []
    for file in files:
        source = file.read_text("utf-8")
        lines = source.splitlines()
        for number, broken in mutants(source):
            line = lines[number - 1]
            if source.count(f"{line}\n") == 1 and broken != line:
                name = f"{file.relative_to(ROOT)}: {line.strip()} -> {broken.strip()}"
                found.append(
                    {
                        "name": name,
                        "file": str(file.relative_to(ROOT)),
                        "text": f"{line}\n",
                        "replacement": f"{broken}\n",
                    }
                )
    return random.Random(seed).sample(found, min(count, len(found)))


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("paths", nargs="*", help="files and folders to break")
    arguments.add_argument("--tests", nargs="+", required=True, help="files and folders of tests")
    arguments.add_argument("--count", type=int, default=30)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--again", type=Path, help="repeat the mutations that this file says were found")
    arguments.add_argument("--out", type=Path, help="write the results into this file")
    options = arguments.parse_args()
    if options.again:
        chosen = [each for each in json.loads(options.again.read_text("utf-8")) if each["by"]]
    else:
        chosen = draw(options.paths, options.count, options.seed)
    counts = {"found": 0, "NOT FOUND": 0, "gone": 0, "ERROR": 0}
    done = []
    for each, verdict, by in outcomes(
        [each | {"tests": options.tests} for each in chosen], options.tiers, options.limit
    ):
        counts[verdict] += 1
        done.append(each | {"by": "" if verdict == "gone" else by})
        if options.out:
            options.out.write_text(json.dumps(done, indent=1), "utf-8")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return bool(counts["NOT FOUND"] and options.again)


if __name__ == "__main__":
    sys.exit(main())
