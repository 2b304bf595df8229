"""Two change feeds from end to end: `python -m examples.change_feeds FOLDER`.

    SQLite: orders ──► envelopes as Debezium's ──► Nyala: orders ──► its change feed ──► totals per customer
            log        late, repeated, shuffled           apply_changes                  one transaction each

source.py      a database of orders whose triggers log each change
pipeline.py    applies the events, and follows the table's own feed with an aggregate
__main__.py    runs the pipeline in a process of its own, kills it in the middle, runs it again, and compares
"""
