#!/bin/sh
# fastparquet reads a column of lists of lists as None in each row. There is no error and no warning.
#
# Versions: fastparquet 2026.9.0, pandas 3.1.1, pyarrow 26.0.1, Python 3.11.
# Expected: the matrices, or an error that names the column. pyarrow, polars and duckdb read the same file.
# Seen: a column of vectors is right. A column of 2 x 3 matrices, as fixed-size lists or as lists, has the right number of
# rows, and each row is None. A float16 number is two bytes (b"\x80L" for 18.0).
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install fastparquet==2026.9.0 pandas==3.1.1 pyarrow==26.0.1
cat >"$folder/play.py" <<'PY'
import sys
import warnings

import fastparquet
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

warnings.simplefilter("error", UserWarning)
matrices = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
vectors = pa.FixedSizeListArray.from_arrays(pa.array(matrices.reshape(-1)), 3)
columns = {
    "vector": pa.FixedSizeListArray.from_arrays(pa.array(matrices.reshape(-1)), 6),
    "fixed": pa.FixedSizeListArray.from_arrays(vectors, 2),
    "lists": pa.array(matrices.tolist()),
    "half": pa.array(matrices[:, 0, 0].astype(np.float16)),
}
file = sys.argv[1] + "/steps.parquet"
pq.write_table(pa.table(columns), file)
pyarrow_reads = pq.read_table(file).to_pydict()
read = fastparquet.ParquetFile(file).to_pandas()
for name in columns:
    print(name, "-> pyarrow", pyarrow_reads[name][3], "fastparquet", read[name].iloc[3])
holds = (
    np.array_equal(np.array(pyarrow_reads["fixed"]), matrices)
    and np.array_equal(np.stack(read["vector"]), matrices.reshape(4, 6))
    and all(value is None for name in ("fixed", "lists") for value in read[name])
    and isinstance(read["half"].iloc[3], bytes)
)
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" "$folder/play.py" "$folder"
