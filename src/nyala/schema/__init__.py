"""Types, schemas, and the users' data and predicates brought into their terms.

    types.py       the thirteen column types
    cast.py        one rule per pair of types: what is cast, what fails and in which rows
    schema.py      columns, their ids and defaults, the limits
    row_errors.py  which rows of a batch failed, and why
    convert.py     a user's data as canonical Arrow columns

Import from the modules; this package re-exports nothing, so that `import nyala` loads only what it needs.
"""
