#!/bin/sh
# daft reads no Parquet file that has a float16 column, not even the other columns of the file.
#
# Versions: daft 0.6.14, pyarrow 26.0.1, Python 3.11.
# Expected: the numbers, as float16 or float32, or an error that names the column. Parquet has float16 since format 2.10
# (2023). pyarrow, polars and duckdb read the same file.
# Seen: DaftCoreException: Unable to parse parquet metadata ...: File out of specification: Invalid thrift: bad data.
# With float32 in the place of float16, the file is read.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install daft==0.6.14 pyarrow==26.0.1 numpy
cat >"$folder/play.py" <<'PY'
import sys

import daft
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

found = {}
for dtype in (np.float32, np.float16):
    file = f"{sys.argv[1]}/{dtype.__name__}.parquet"
    table = pa.table({"step": np.arange(5), "obs": np.linspace(0, 1, 5).astype(dtype)})
    pq.write_table(table, file)
    assert pq.read_table(file).equals(table)
    try:
        found[dtype] = daft.read_parquet(file).select("step").to_pydict()["step"]
    except Exception as error:
        found[dtype] = f"{type(error).__name__}: {error}".replace(file, "FILE")
    print(dtype.__name__, "->", found[dtype])
holds = found[np.float32] == [0, 1, 2, 3, 4] and "Invalid thrift" in found[np.float16]
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" "$folder/play.py" "$folder"
