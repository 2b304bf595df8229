"""`format("nyala")`: the data source that Spark calls, for batches and streams.

data_source      what Spark calls; reader, writer, changes and stream_writer do its work
options          the options of `.option(...)`, checked
option_messages  the library's sentences in the words of `.option(...)`
reader           planning on the driver (one snapshot, scan tokens), reading on the executors
changes          the change feed, as a stream or as one batch
writer           staging on the executors, one commit on the driver
stream_writer    the same for the micro-batches of a stream, each exactly once
"""
