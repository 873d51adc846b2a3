"""Polars: groups, a sort and a join of two million rows."""

import polars as pl

ROWS = 2_000_000
rows = pl.int_range(ROWS, eager=True)
frame = pl.DataFrame({"key": rows * 7919 % 1000, "value": rows * 31 % 10007, "text": (rows % 5000).cast(pl.Utf8)})
print(frame.group_by("key").agg(pl.col("value").sum(), pl.col("text").n_unique()).sort("key").sum())
print(frame.sort("value", "key").head(5))
print(frame.join(frame.head(1000), on="key").height)
