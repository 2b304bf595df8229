"""`format("nyala")`: the data source that Spark calls, for batches and streams.

data_source      the class that Spark calls; it makes the readers and writers of the modules below
options          parses and checks the options of `.option(...)`
option_messages  rewrites error messages in the words of `.option(...)`
reader           planning on the driver (one snapshot, scan tokens), reading on the executors
changes          the change feed, as a stream or as one batch
writer           staging on the executors, one commit on the driver
stream_writer    the same for the micro-batches of a stream, each exactly once
"""
