"""Rows for other engines: frames and lazy sources of polars, and text as the views that polars and
DuckDB use.
"""
