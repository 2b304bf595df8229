"""Drives Kudu's own Java client by py4j: tables, sessions with MANUAL_FLUSH, snapshots and diff scans."""

from __future__ import annotations

import glob
import importlib.util
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

Operation = tuple[str, Mapping[str, Any]]

_METHODS = {
    "insert": "newInsert",
    "insert-ignore": "newInsertIgnore",
    "upsert": "newUpsert",
    "update": "newUpdate",
    "update-ignore": "newUpdateIgnore",
    "delete": "newDelete",
    "delete-ignore": "newDeleteIgnore",
}
_SETTERS = {
    "bool": "addBoolean",
    "int32": "addInt",
    "int64": "addLong",
    "double": "addDouble",
    "string": "addString",
}


class Kudu:
    """A client of a Kudu master, in its own Java process. Use it as a context manager."""

    def __init__(self, master: str, jars: str) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        (py4j,) = glob.glob(f"{os.path.dirname(spec.origin)}/jars/py4j-*.jar")
        port, self._process = launch_gateway(
            classpath=":".join([*sorted(glob.glob(f"{jars}/*.jar")), py4j]), jarpath=py4j,
            javaopts=["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Xmx512m"],
            die_on_exit=True, return_proc=True,
        )  # fmt: skip
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self._kudu = self._gateway.jvm.org.apache.kudu
        self._client = self._kudu.client.KuduClient.KuduClientBuilder(master).build()

    def __enter__(self) -> Kudu:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.shutdown()
        self._process.kill()
        self._process.wait(5)
        self._process.stdin.close()

    def create(
        self, name: str, columns: Mapping[str, str], key: Sequence[str], hashed: str, buckets: int
    ) -> Any:
        """Create a table with one hash level. The type "int32 default 7" means NOT NULL with this default."""
        made = []
        for column, text in columns.items():
            kind, _, default = text.partition(" default ")
            builder = self._kudu.ColumnSchema.ColumnSchemaBuilder(
                column, getattr(self._kudu.Type, kind.upper())
            )
            builder.key(column in key).nullable(column not in key and not default)
            if default:
                builder.defaultValue(self._gateway.jvm.java.lang.Integer.valueOf(default))
            made.append(builder.build())
        options = self._kudu.client.CreateTableOptions()
        options.setNumReplicas(1)
        options.addHashPartitions([hashed], buckets)
        self.drop(name)
        return self._client.createTable(name, self._kudu.Schema(made), options)

    def drop(self, name: str) -> None:
        if self._client.tableExists(name):
            self._client.deleteTable(name)

    def apply(self, table: Any, operations: Sequence[Operation]) -> list[tuple[int, str]]:
        """Apply a list in one flush; return the position and the code of each failing row."""
        session = self._client.newSession()
        session.setFlushMode(self._kudu.client.SessionConfiguration.FlushMode.MANUAL_FLUSH)
        schema = table.getSchema()
        for kind, row in operations:
            operation = getattr(table, _METHODS[kind])()
            cells = operation.getRow()
            for name, value in row.items():
                if value is None:
                    cells.setNull(name)
                else:
                    type = schema.getColumn(name).getType().getName()
                    getattr(cells, _SETTERS[type])(name, value)
            session.apply(operation)
        failed = [
            (place, response.getRowError().getErrorStatus().getCodeName())
            for place, response in enumerate(session.flush())
            if response.hasRowError()
        ]
        session.close()
        return failed

    def now(self) -> int:
        """Return the timestamp of a snapshot that has all writes of this client."""
        return int(self._client.getLastPropagatedTimestamp()) + 1

    def rows(self, table: Any, at: int | None = None, since: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows, sorted. With `since`: the changed rows; the last value says whether one was deleted."""
        builder = self._client.newScannerBuilder(table)
        if since is not None:
            builder.diffScan(since, at)
        elif at is not None:
            builder.readMode(self._kudu.client.AsyncKuduScanner.ReadMode.READ_AT_SNAPSHOT)
            builder.snapshotTimestampRaw(at)
        scanner, found = builder.build(), []
        while scanner.hasMoreRows():
            part = scanner.nextRows()
            while part.hasNext():
                row = part.next()
                count = row.getSchema().getColumnCount()
                found.append(tuple(None if row.isNull(at) else row.getObject(at) for at in range(count)))
        scanner.close()
        return sorted(found, key=repr)
