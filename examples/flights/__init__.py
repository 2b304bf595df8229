"""The flights of New York, 2013, through PySpark into Nyala and back: `python -m examples.flights`.

__main__.py        the way in, which Ctrl-C leaves quietly from its first moment
screen.py          the screen: options, progress, what to type next
pipeline.py        the six steps, as one would write them
place.py           where the store is: a folder or a bucket
data.py            the real data: where it lies, its columns, the daily feed
checks.py          every answer compared with Spark over the plain CSV
reader_process.py  the second process of step 5: a Spark session of its own that only reads
session.py         a plain Spark session, local or on a cluster
"""
