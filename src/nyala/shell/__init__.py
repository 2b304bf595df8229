"""The SQL shell: `nyala sql FOLDER`.

    repl        asks for lines on a terminal: prompt, history, completion
      |  completion     tables, columns, keywords and dot commands
      v
    shell       runs a text of statements and dot commands
      |  dot_commands   .tables, .schema, .at, .mode, …
      v
    console     the state of the shell, and how it prints rows
      |  formats        rows as a table, CSV, JSON, Markdown or lines
      v
    runner      a session and the thread in which its statements run, which Ctrl-C interrupts
    moments     a time as a person types it

Invariants
    S1  stdout has only rows. Counts, times and errors go to stderr.
    S2  The worker thread alone calls the engine while a statement runs, so a signal never interrupts a write. Ctrl-C
        interrupts the session, and the shell waits for the outcome. "Cancelled." means that the statement changed
        nothing; if the statement was faster, its result is printed instead.
    S3  At the end an open transaction is rolled back, and a line says so.

Source: docs/how-to/shell.md.
"""
