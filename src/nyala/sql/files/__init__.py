"""COPY, ATTACH and DETACH: SQL of the program reaches files and other stores.

Source: docs/how-to/sql.md, "Files".
"""
