"""The SQL shell: `nyala sql FOLDER`.

    repl            reads lines on a terminal: prompt, history, completion
      |  completion       tables, columns, keywords and dot commands
      v
    shell           runs a text of statements and dot commands
      |  dot_commands     .tables, .schema, .at, .mode, …
      v
    console         the settings of the shell, and how it prints rows
      |  formats          rows as a table, CSV, JSON, Markdown or lines
      v
    runner          runs the statements in a thread, so that Ctrl-C can interrupt them
    moments         parses times such as `2h`

Invariants
    S1  stdout has only rows. Counts, times and errors go to stderr.
    S2  While a statement runs, only the worker thread calls the engine, so a signal never
        interrupts a write. Ctrl-C interrupts the session, and the shell waits for the outcome.
        "Cancelled." means that the statement changed nothing. If the statement ended before the
        interrupt, its result is printed instead.
    S3  At the end of the shell an open transaction is rolled back, and a message says so.

Source: docs/how-to/shell.md.
"""
