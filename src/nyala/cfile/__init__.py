"""Column files: the file format of base data and of delta files.

    writer      CFileWriter: writes a new file            reader         CFileReader: opens a file
    encoding/   values of a block as bytes                column_reader  decodes, filters, gathers
    forms/      blocks in memory, a class per encoding    footer         a column's type, block index
    blocks/     blocks in the file and in the cache       index/         zone maps, bloom filters
    kernels/    inner loops, compiled or in NumPy         physical       stored types of values
    format      every number that is on disk              dump           a file as text

A file holds any number of columns. Each column has its own number of values, encoding and blocks
(docs/format/cfile.md). The *ordinal* of a value is its position in the column. This package does
not know the rows of tables: `rowset` and `delta` know which row a value belongs to, which rows are
live, and which values changed.
"""
