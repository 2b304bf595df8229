"""The same random history on real Kudu and on Nyala: outcomes per row, snapshots and diff scans must agree.

Skipped unless these name a running Kudu (1.17 or later) and the folder with the jars of its Java client:

    NYALA_KUDU=127.0.0.1:7051 NYALA_KUDU_JARS=~/kudu/lib pytest tests/kudu

Get the jars with `mvn dependency:copy-dependencies` for org.apache.kudu:kudu-client, and the servers from
org.apache.kudu:kudu-binary. py4j comes with PySpark.
"""
