"""Column types and schemas, conversion of users' data, predicates and expressions.

    types, schema   the thirteen column types; a table's columns with their ids and defaults
    limits          size limits of tables, columns and values
    alteration      adds, drops, renames and changes columns
    adapter         converts values between the types that a column had before and after such a change
    arrow_values    views Arrow arrays as NumPy arrays
    conversion/     converts a user's data to Arrow arrays of the column types
    expressions/    the SQL language of conditions and expressions
    predicates/     checks conditions and expressions against a table, and evaluates them

Import from the modules: the package itself exports nothing, so that `import nyala` loads only what
it needs.
"""
