"""Column types and schemas, conversion of users' data, predicates and expressions.

    types, schema   the thirteen column types; columns, their ids and defaults
    limits          size limits
    arrow_ipc       Arrow rows to bytes of a stream, and back
    alteration      applies one change to a schema
    conversion/     converts users' data to columns of canonical Arrow arrays
    expressions/    the language of conditions and expressions
    predicates/     binds `where=` and `update(set=)` expressions to a table

Import from the modules; this package re-exports nothing, so that `import nyala` loads only what it needs.
"""
