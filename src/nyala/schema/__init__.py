"""Types and schemas; users' data, predicates and expressions in terms of a schema.

    types, schema   the thirteen column types; columns, their ids and defaults, the limits
    arrow_ipc       Arrow rows as bytes of a stream, and back
    alteration      a schema and one change of it: the next schema
    conversion/     users' data as columns of canonical Arrow arrays
    expressions/    the one language of conditions and expressions
    predicates/     `where=` and `update(set=)`: an expression bound to a table

Import from the modules; this package re-exports nothing, so that `import nyala` loads only what it needs.
"""
