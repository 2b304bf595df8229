"""COPY, ATTACH and DETACH: COPY, ATTACH and DETACH: read and write files, read other stores.

Source: docs/how-to/sql.md, "Files".
"""
