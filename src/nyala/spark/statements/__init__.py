"""`nyala.spark.sql`: runs a SELECT in Spark that reads only the needed columns and rows of each
table.

    query           `sql(...)` itself
    table_uses      finds the tables in the text, and makes the text that Spark runs
    table_reads     finds the columns and the predicate that each use of a table needs
    predicates      translates terms of WHERE and ON into Nyala's predicates
    constants       lets Spark evaluate constant expressions
    unknown_names   replaces Spark's errors about unknown names by short ones
    shared_readers  open readers and DataFrames that several statements of a program use
    parser          imports sqlglot
"""
