"""Changes of whole tables.

creation   creates a table, also with rows, and in the place of another one
cloning    makes a table that shares the files of another one
copying    copies or repartitions a table by rewriting all rows
restore    restores a table to an earlier moment
"""
