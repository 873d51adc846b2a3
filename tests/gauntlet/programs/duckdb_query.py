"""DuckDB: distinct strings of two million rows."""

import duckdb

QUERY = """
select sum(hash(text) % 1000003), count(distinct text)
from (select (i * 7919 % 500000)::varchar || repeat('x', i % 50) text from range(2000000) numbers(i))
"""
print(duckdb.connect(config={"threads": 2}).execute(QUERY).fetchall())
