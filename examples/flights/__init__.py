"""The flights of New York in 2013, through PySpark into Nyala and back: `python -m
examples.flights`.

    __main__.py        the program, which Ctrl-C ends without a traceback from its first moment
    screen.py          options, progress, and commands to try next
    pipeline.py        the six steps
    place.py           the store's place: a folder or a bucket
    data.py            the data: its files, its columns, the daily feed
    checks.py          compares every result with Spark over the CSV files
    reader_process.py  the second process of step 5, with its own Spark session that only reads
    session.py         starts a Spark session, local or on a cluster
"""
