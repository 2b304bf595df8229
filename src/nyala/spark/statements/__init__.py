"""`nyala.spark.sql`: runs a SELECT in Spark that reads only the needed columns and rows of each Nyala table.

query           `sql(...)` itself
table_uses      finds the tables in the text, and makes the text that Spark runs
table_reads     finds the columns and the predicate of each use
predicates      translates SQL terms into Nyala's predicates
constants       has Spark evaluate constant expressions
unknown_names   turns Spark's errors about unknown names into one sentence
shared_readers  open readers and DataFrames that the statements of a program share
parser          sqlglot
"""
