"""The column file: where base data and deltas lie on disk.

    writer  CFileWriter: columns in, one file out           reader  CFileReader, ColumnReader: ordinals in, Arrow out
    block   header, validity, values, CRC                   footer  a column's type, block index, zone map, first keys
    encoding/  values of a block as bytes, one module each  physical  values of a type as they lie in a block
    zonemap, bloom, cache, compression, dump                format  every number that is on disk

A file holds any number of columns, each with its own row count, encoding and blocks; see docs/format/cfile.md.
Values are addressed by *ordinal*, their position in the column. What rows they belong to, which of them are
live and what deltas say is the business of `delta` and `rowset`.
"""
