"""Speed of the vector environments against other libraries and against the physical bound.

Run it with ``python -m benchmarks.run``; ``benchmarks/README.md`` says what every row means.
"""
