"""`format("nyala")`: the data source that Spark calls, for batches and streams.

data_source      the class that Spark calls; it makes the readers and writers below
options          parses and checks the options of `.option(...)`
option_messages  rewords errors of the library, which name Python arguments, for `.option(...)`
reader           batch reads: plans scan tokens on the driver, reads them on the executors
changes          reads the change feed, as a stream or as one batch
writer           batch writes: executors stage the rows, the driver commits them
stream_writer    writes the micro-batches of a stream, each exactly once
"""
