"""Types, schemas, and the users' data and predicates brought into their terms.

    types.py        the thirteen column types
    array_cast.py   the table of casts: Arrow data to a column's type, and which rows fail
    cast.py         Python lists and single values, by the same table
    schema.py       columns, their ids and defaults, the limits
    row_errors.py   which rows of a batch failed, and why
    convert.py      a user's data as canonical Arrow columns
    ready.py        the same of data that has the types already, as a whole
    predicate.py    `where=`: from text or `col()` to rows, and to what may be skipped
    expression.py   `update(set=)`: from a value, `expr()` or `col()` to what is assigned
    nodes.py        the tree that both are made of; parser.py reads its text, functions.py has its functions

The other modules serve one of the last two. Import from the modules; this package re-exports nothing, so that
`import nyala` loads only what it needs.
"""
