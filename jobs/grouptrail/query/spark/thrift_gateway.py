"""The Thrift server (JDBC, ODBC): it lets clients in, checks what they request, and has Spark's service answer.

The wire protocol is HiveServer2's: SASL PLAIN, then one Thrift message a frame. Spark's service runs without a port
of its own, so that clients cannot go around this one. Messages are read with Spark's own Thrift classes, and what has
been checked is the very object that Spark gets.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import get_field
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.query.spark.access import Access, ServeError
from grouptrail.query.spark.guard import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.query.spark.guard import Guard

_METHODS = """
OpenSession CloseSession GetInfo ExecuteStatement GetTypeInfo GetCatalogs GetSchemas GetTables GetTableTypes
GetColumns GetFunctions GetPrimaryKeys GetCrossReference GetOperationStatus CancelOperation CloseOperation
GetResultSetMetadata FetchResults SetClientInfo GetQueryId
"""
_ALLOWED_METHODS = frozenset(_METHODS.split())
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_UNKNOWN_METHOD, _INTERNAL_ERROR = 1, 6
# SASL's messages: a status, a length, the payload.
_START, _OK, _BAD, _COMPLETE = 1, 2, 3, 5
_SASL_HEADER = struct.Struct(">BI")
_FRAME_HEADER = struct.Struct(">I")
_MAX_SASL_BYTES = 4096
_MAX_FRAME_BYTES = 16 << 20
_LOGIN_SECONDS = 20.0
_MAX_CONNECTIONS = 128
_DATABASE = "use:database"


class LoginError(GrouptrailError):
    """A client that may not connect."""


class ThriftGateway:
    """Serves JDBC and ODBC clients, each connection in a thread."""

    def __init__(self, access: Access, port: int, service: ThriftService) -> None:
        """Start listening. Raises ServeError if that fails."""
        self._access, self._port, self._service = access, port, service
        self._tls = access.tls.context() if access.tls is not None else None
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        host = access.check()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=_MAX_CONNECTIONS)
        except OSError as error:
            raise ServeError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --thrift-port"
            ) from error
        threading.Thread(target=self._accept, name="thrift", daemon=True).start()

    def stop(self) -> None:
        """Stop listening; connections end with the process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                client, address = self._listener.accept()
            except OSError:
                self._free.release()
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # out of file descriptors
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(client, address[1]), name="thrift-client", daemon=True
                ).start()
            except RuntimeError:  # no thread to spare
                client.close()
                self._free.release()

    def _serve(self, accepted: socket.socket, client_port: int) -> None:
        try:
            with self._encrypted(accepted) as client:
                # A client that has not logged in by then is cut off, however slowly it sends.
                deadline = threading.Timer(_LOGIN_SECONDS, _cut, [client])
                deadline.daemon = True
                deadline.start()
                try:
                    if isinstance(client, ssl.SSLSocket):
                        client.do_handshake()
                    user = self._log_in(client, client_port)
                finally:
                    deadline.cancel()
                with self._service.connection(user) as connection:
                    for frame in _frames(client):
                        answer = connection.answer(frame)
                        client.sendall(_FRAME_HEADER.pack(len(answer)) + answer)
        except (OSError, EOFError, LoginError, Py4JError):
            pass  # the client is gone, or has its refusal already
        finally:
            self._free.release()

    def _encrypted(self, client: socket.socket) -> socket.socket:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._tls is None:
            return client
        return self._tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def _log_in(self, client: socket.socket, client_port: int) -> str:
        """Do SASL PLAIN (RFC 4616); return the client's user name. Raises LoginError."""
        status, mechanism = _receive_sasl(client)
        if (status, mechanism) != (_START, b"PLAIN"):
            raise _refused(client, "log in with SASL PLAIN, the default of HiveServer2's clients")
        status, payload = _receive_sasl(client)
        parts = payload.split(b"\0")
        if status not in (_OK, _COMPLETE) or len(parts) != 3:
            raise _refused(client, "log in with a user and a password")
        if refusal := self._access.refusal(parts[2].decode(errors="replace"), client_port, self._port):
            raise _refused(client, f"{refusal.replace('token', 'token as the password', 1)}")
        client.sendall(_SASL_HEADER.pack(_COMPLETE, 0))
        return parts[1].decode(errors="replace")


class ThriftService:
    """Spark's Thrift service in this application. Without a guard, clients may do whatever the server's user may."""

    def __init__(self, spark: SparkSession, guard: Guard | None) -> None:
        jvm: Any = spark._jvm
        self.guard = guard
        self.thrift = jvm.org.apache.thrift
        self.messages = jvm.org.apache.hive.service.rpc.thrift
        hive = jvm.org.apache.spark.sql.hive
        session, context = spark._jsparkSession, spark.sparkContext._jsc.sc()
        settings = getattr(getattr(hive, "HiveUtils$"), "MODULE$").newClientForExecution(
            context.conf(), session.sessionState().newHadoopConf()
        )
        server = hive.thriftserver.HiveThriftServer2(session)
        server.init(settings.conf())
        # What HiveThriftServer2 does at its start, except that its service does not listen.
        getattr(hive.thriftserver.HiveThriftServer2, "eventManager_$eq")(
            hive.thriftserver.ui.HiveThriftServer2EventManager(context)
        )
        operations, self.handler = server.getServices()
        operations.start()

    @contextlib.contextmanager
    def connection(self, user: str) -> Iterator[ThriftConnection]:
        """Yield a connection, whose sessions are closed with it."""
        connection = ThriftConnection(self, user)
        try:
            yield connection
        finally:
            connection.close()


class ThriftConnection:
    """Answers the messages of one client."""

    def __init__(self, service: ThriftService, user: str) -> None:
        self._service, self._user = service, user
        self._sessions: list[Any] = []

    def answer(self, frame: bytes) -> bytes:
        """Return the message that answers the one in a frame. Raises EOFError if it has none."""
        thrift, messages = self._service.thrift, self._service.messages
        source = thrift.protocol.TBinaryProtocol(thrift.transport.TMemoryInputTransport(frame), True, True)
        try:
            call = source.readMessageBegin()
        except Py4JError as error:
            raise EOFError("no message of Thrift's binary protocol") from error
        name, number = str(get_field(call, "name")), get_field(call, "seqid")
        if name not in _ALLOWED_METHODS or get_field(call, "type") != _CALL:
            refusal = str(RefusedError("this method of HiveServer2"))
            return self._written(name, _EXCEPTION, number, thrift.TApplicationException(_UNKNOWN_METHOD, refusal))
        try:
            arguments = getattr(messages, f"TCLIService${name}_args")()
            arguments.read(source)
            if arguments.getReq() is None:
                raise EOFError("a call without its argument")
            result = getattr(messages, f"TCLIService${name}_result")()
            result.setSuccess(self._response(name, arguments.getReq()))
        except (Py4JError, PySparkException) as error:
            failure = thrift.TApplicationException(_INTERNAL_ERROR, first_cause(error))
            return self._written(name, _EXCEPTION, number, failure)
        return self._written(name, _REPLY, number, result)

    def close(self) -> None:
        """Close the sessions that the client left open."""
        for session in self._sessions:
            with contextlib.suppress(Py4JError, PySparkException):
                self._service.handler.CloseSession(self._service.messages.TCloseSessionReq(session))

    def _response(self, name: str, request: Any) -> Any:
        messages, guard = self._service.messages, self._service.guard
        try:
            if name == "OpenSession":
                request.setUsername(self._user)
                if guard is not None:
                    request.setConfiguration(_checked_settings(dict(request.getConfiguration() or {}), guard))
            elif name == "ExecuteStatement" and guard is not None:
                if request.getConfOverlay():
                    raise RefusedError("a setting for one statement")
                guard.check_statement(request.getStatement() or "")
        except (GrouptrailError, PySparkException) as error:
            status = messages.TStatus(messages.TStatusCode.ERROR_STATUS)
            status.setErrorMessage(first_cause(error))
            status.setSqlState("42000")
            if name == "OpenSession":
                return messages.TOpenSessionResp(status, request.getClient_protocol())
            return messages.TExecuteStatementResp(status)
        response = getattr(self._service.handler, name)(request)
        if name == "OpenSession" and response.getSessionHandle() is not None:
            self._sessions.append(response.getSessionHandle())
        return response

    def _written(self, name: str, kind: int, number: int, content: Any) -> bytes:
        thrift = self._service.thrift
        buffer = thrift.transport.TMemoryBuffer(512)
        target = thrift.protocol.TBinaryProtocol(buffer)
        target.writeMessageBegin(thrift.protocol.TMessage(name, kind, number))
        content.write(target)
        target.writeMessageEnd()
        return bytes(buffer.getArray())[: buffer.length()]


def _checked_settings(settings: dict[str, str], guard: Guard) -> dict[str, str]:
    """Return what Spark gets of a session's settings: the schema. Raises RefusedError for settings of Spark."""
    for name in settings:
        # Drivers send settings of Hive, such as their fetch size, which Spark does not need.
        if name != _DATABASE and not name.startswith("set:hiveconf:hive."):
            raise RefusedError(f"the setting {name}")
    if _DATABASE in settings:
        guard.check_schema(settings[_DATABASE])
    return {name: value for name, value in settings.items() if name == _DATABASE}


def _refused(client: socket.socket, reason: str) -> LoginError:
    text = reason.encode()
    client.sendall(_SASL_HEADER.pack(_BAD, len(text)) + text)
    return LoginError(reason)


def _receive_sasl(client: socket.socket) -> tuple[int, bytes]:
    status, length = _SASL_HEADER.unpack(_receive(client, _SASL_HEADER.size))
    if length > _MAX_SASL_BYTES:
        raise EOFError("no message of SASL")
    return status, _receive(client, length)


def _frames(client: socket.socket) -> Iterator[bytes]:
    """Yield what a client sends, frame by frame. Raises EOFError at its end."""
    while True:
        [length] = _FRAME_HEADER.unpack(_receive(client, _FRAME_HEADER.size))
        if length > _MAX_FRAME_BYTES:
            raise EOFError("a frame that is too large")
        yield _receive(client, length)


def _receive(client: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = client.recv(min(length - len(data), 1 << 16))
        if not part:
            raise EOFError("the client is gone")
        data += part
    return bytes(data)


def _cut(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not SSLSocket.shutdown, which takes the encryption away from the thread that uses the socket.
        socket.socket.shutdown(client, socket.SHUT_RDWR)
