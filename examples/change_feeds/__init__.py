"""Two change feeds from end to end: `python -m examples.change_feeds FOLDER`.

SQLite: orders ──► events as of Debezium ──► Nyala: orders ──► its change feed ──► totals per customer
        log        late, repeated, shuffled        apply_changes                one transaction each

source.py      a database of orders whose triggers log each change
pipeline.py    applies the events, and aggregates the change feed of the table
__main__.py    runs the pipeline in a process, kills it, runs it again, and compares the results
"""
