"""Operations on whole tables.

creation   creates a table, with or without rows; may replace another table
cloning    creates a table that shares the files of another one
copying    copies or repartitions a table by rewriting all rows
restore    restores a table to an earlier moment
"""
