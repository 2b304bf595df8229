"""`nyala.spark.sql`: a SELECT of Spark's that reads of each Nyala table only the columns and rows that it needs.

query           `sql(...)` itself
table_uses      where tables stand in the text, and the text that Spark runs
table_reads     the columns and the predicate of each use
predicates      terms of SQL as predicates of Nyala's
constants       constant expressions, whose values Spark says
unknown_names   Spark's errors of unknown names, in one sentence
shared_readers  what the statements of a program share: open readers and DataFrames
parser          sqlglot
"""
