"""The column file: base data and deltas on disk.

    writer        CFileWriter: columns in, one file out       reader         CFileReader: opens a file
    encoding/     values of a block as bytes                  column_reader  decodes, filters and gathers values
    forms/        blocks in memory, as encodings keep them    footer         a column's type and block index
    blocks/       blocks in the file and in the cache         index/         zone maps and bloom filters
    kernels/      the loops, compiled or in NumPy             physical       values of a type as they are stored
    format        every number that is on disk                dump           a file as text

A file holds any number of columns, each with its own row count, encoding and blocks; see docs/format/cfile.md. A value
is addressed by its *ordinal*, its position in the column. `delta` and `rowset` know which rows the values belong to,
which rows are live, and what deltas say.
"""
