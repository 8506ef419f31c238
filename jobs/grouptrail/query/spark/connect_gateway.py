"""The public side of Spark Connect: it lets clients in, checks what they request, and passes it on to Spark.

Spark's own server listens on a loopback port that only this gateway can use: Spark demands a token made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from pyspark.errors import PySparkException
from pyspark.sql.connect.proto import base_pb2

from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.query.spark.access import Access, ServeError
from grouptrail.query.spark.connect_guard import check_request
from grouptrail.query.spark.guard import Guard, RefusedError

_SERVICE = "spark.connect.SparkConnectService"
_REQUESTS: dict[str, type[Message]] = {
    "AnalyzePlan": base_pb2.AnalyzePlanRequest,
    "ArtifactStatus": base_pb2.ArtifactStatusesRequest,
    "CloneSession": base_pb2.CloneSessionRequest,
    "Config": base_pb2.ConfigRequest,
    "ExecutePlan": base_pb2.ExecutePlanRequest,
    "FetchErrorDetails": base_pb2.FetchErrorDetailsRequest,
    "GetStatus": base_pb2.GetStatusRequest,
    "Interrupt": base_pb2.InterruptRequest,
    "ReattachExecute": base_pb2.ReattachExecuteRequest,
    "ReleaseExecute": base_pb2.ReleaseExecuteRequest,
    "ReleaseSession": base_pb2.ReleaseSessionRequest,
}
_STREAMS = ("ExecutePlan", "ReattachExecute")
_AUTHORIZATION = "authorization"
_MAX_REQUEST_BYTES = 128 << 20  # as Spark's server
_MAX_REQUESTS = 64


class ConnectGateway:
    """Serves Spark Connect. Without a guard, clients may do whatever the server's user may."""

    def __init__(self, access: Access, port: int, *, spark_port: int, spark_token: str, guard: Guard | None) -> None:
        """Start listening. Raises ServeError if that fails."""
        self._access, self._port, self._guard = access, port, guard
        self._metadata = ((_AUTHORIZATION, f"Bearer {spark_token}"),)
        self._spark = grpc.insecure_channel(
            f"127.0.0.1:{spark_port}",
            options=[("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)],
        )
        self._server = grpc.server(
            ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="connect"),
            options=[("grpc.max_receive_message_length", _MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_MAX_REQUESTS,
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, self._handlers())])
        host = access.check()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if access.tls is None:
                bound = self._server.add_insecure_port(address)
            else:
                pair = (access.tls.key.read_bytes(), access.tls.certificate.read_bytes())
                bound = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError:
            bound = 0
        if not bound:
            raise ServeError(f"cannot listen on {address}: choose another --connect-port")
        self._server.start()

    def stop(self) -> None:
        """Stop listening, and end the requests in progress."""
        self._server.stop(None).wait()
        self._spark.close()

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        # Requests and responses stay bytes here: a request is parsed once its client may connect.
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_stream_rpc_method_handler(self._stream(name))
            if name in _STREAMS
            else grpc.unary_unary_rpc_method_handler(self._unary(name))
            for name in _REQUESTS
        }
        handlers["AddArtifacts"] = grpc.stream_unary_rpc_method_handler(self._add_artifacts)
        return handlers

    def _unary(self, name: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        call = self._spark.unary_unary(f"/{_SERVICE}/{name}")

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            checked = self._checked(name, request, context)
            return _relayed(call.future(checked, metadata=self._metadata), context)

        return answer

    def _stream(self, name: str) -> Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]:
        call = self._spark.unary_stream(f"/{_SERVICE}/{name}")

        def answer(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            checked = self._checked(name, request, context)
            responses = call(checked, metadata=self._metadata)
            context.add_callback(responses.cancel)
            try:
                yield from responses
            except grpc.RpcError as error:
                _relay(error, context)

        return answer

    def _add_artifacts(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        self._let_in(context)
        if self._guard is not None:
            _abort(context, grpc.StatusCode.PERMISSION_DENIED, str(RefusedError("adding files or code")))
        call = self._spark.stream_unary(f"/{_SERVICE}/AddArtifacts")
        return _relayed(call.future(requests, metadata=self._metadata), context)

    def _let_in(self, context: grpc.ServicerContext) -> None:
        given = dict(context.invocation_metadata()).get(_AUTHORIZATION, "")
        client_port = int(context.peer().rpartition(":")[2])
        token = str(given).removeprefix("Bearer ")
        if refusal := self._access.refusal(token, client_port, self._port):
            _abort(context, grpc.StatusCode.UNAUTHENTICATED, refusal)

    def _checked(self, name: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Return what to send to Spark: what has been checked, and nothing else that was in the request."""
        self._let_in(context)
        if self._guard is None:
            return request
        try:
            message = _REQUESTS[name].FromString(request)
            # What this version cannot see cannot be checked.
            message.DiscardUnknownFields()
            check_request(message, self._guard)
            return bytes(message.SerializeToString())
        except (DecodeError, RecursionError) as error:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be read ({first_cause(error)})")
        except PySparkException as error:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, first_cause(error))
        except GrouptrailError as error:
            _abort(context, grpc.StatusCode.PERMISSION_DENIED, str(error))


def _relayed(call: Any, context: grpc.ServicerContext) -> bytes:
    context.add_callback(call.cancel)
    try:
        return bytes(call.result())
    except grpc.RpcError as error:
        _relay(error, context)


def _relay(error: grpc.RpcError, context: grpc.ServicerContext) -> NoReturn:
    """End a request with the error of Spark's server; its details are in the metadata."""
    call: Any = error
    context.set_trailing_metadata(call.trailing_metadata() or ())
    _abort(context, call.code(), call.details() or "")


def _abort(context: grpc.ServicerContext, status: grpc.StatusCode, details: str) -> NoReturn:
    context.abort(status, details)
    raise AssertionError("abort raises an exception")
