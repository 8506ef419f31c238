"""Tickets and login tokens of Kerberos, from the GSSAPI library of MIT Kerberos (RFC 2744).

The library is called by ctypes: Python's binding has to be compiled on each machine, which needs a C compiler and the
library's headers. Its functions wait for KDCs without holding Python's lock, and may be called by several threads.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any

LIBRARY = "libgssapi_krb5.so.2"

_INITIATE = 1
_MUTUAL = 2
_CONTINUE_NEEDED = 1
_ERRORS = 0xFFFF0000
_OF_LIBRARY, _OF_MECHANISM = 1, 2
_INDEFINITE = 0xFFFFFFFF


class GssError(Exception):
    """A call of the library failed: its text, and Kerberos' error code (as in krb5.h, negative) if there is one."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class _Buffer(ctypes.Structure):
    kept: bytes
    _fields_ = (("length", c_size_t), ("value", c_void_p))


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_char_p))


class _OidSet(ctypes.Structure):
    _fields_ = (("count", c_size_t), ("elements", POINTER(_Oid)))


class _Element(ctypes.Structure):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


class _Store(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("elements", POINTER(_Element)))


def _oid(encoded: str) -> _Oid:
    content = bytes.fromhex(encoded)
    return _Oid(len(content), content)


_KERBEROS = _oid("2a864886f712010202")  # 1.2.840.113554.1.2.2
_PRINCIPAL = _oid("2a864886f71201020201")  # its name type of principals
_HOST_SERVICE = _oid("2a864886f71201020104")  # service@host

_ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "gss_import_name": (POINTER(_Buffer), POINTER(_Oid), POINTER(c_void_p)),
    "gss_acquire_cred_from": (
        *(c_void_p, c_uint32, POINTER(_OidSet), c_int, POINTER(_Store)),
        *(POINTER(c_void_p), c_void_p, POINTER(c_uint32)),
    ),
    "gss_init_sec_context": (
        *(c_void_p, POINTER(c_void_p), c_void_p, POINTER(_Oid), c_uint32, c_uint32, c_void_p, POINTER(_Buffer)),
        *(c_void_p, POINTER(_Buffer), c_void_p, c_void_p),
    ),
    "gss_wrap": (c_void_p, c_int, c_uint32, POINTER(_Buffer), c_void_p, POINTER(_Buffer)),
    "gss_unwrap": (c_void_p, POINTER(_Buffer), POINTER(_Buffer), c_void_p, c_void_p),
    "gss_display_status": (c_uint32, c_int, POINTER(_Oid), POINTER(c_uint32), POINTER(_Buffer)),
    "gss_release_buffer": (POINTER(_Buffer),),
    "gss_release_name": (POINTER(c_void_p),),
    "gss_release_cred": (POINTER(c_void_p),),
    "gss_delete_sec_context": (POINTER(c_void_p), c_void_p),
}


@cache
def _library() -> ctypes.CDLL:
    """Return the library. Raises OSError if it is not installed, AttributeError if it is too old."""
    library = ctypes.CDLL(LIBRARY)
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = (POINTER(c_uint32), *arguments), c_uint32
    return library


def is_installed() -> bool:
    """Return whether this machine has the library."""
    try:
        _library()
    except (OSError, AttributeError):
        return False
    return True


class Credentials:
    """Tickets of a client.

    `principal`: whose; None for that of the ticket cache. `store` names where they are, as credential stores of
    MIT Kerberos do: with `client_keytab` the library gets a ticket into `ccache` when there is none, and a new one
    when the last is half over. `lifetime_seconds` is 0 if it has expired and no new one could be had.

    Raises GssError.
    """

    def __init__(self, principal: str | None, store: Mapping[str, str]) -> None:
        elements = (_Element * len(store))(*(_Element(key.encode(), value.encode()) for key, value in store.items()))
        mechanisms = _OidSet(1, ctypes.pointer(_KERBEROS))
        name = _name(principal, _PRINCIPAL) if principal else None
        self.handle = _owned(self, "gss_release_cred")
        lifetime = c_uint32()
        _call(
            "gss_acquire_cred_from",
            *(name, _INDEFINITE, byref(mechanisms), _INITIATE, byref(_Store(len(store), elements))),
            *(byref(self.handle), None, byref(lifetime)),
        )
        self.lifetime_seconds = lifetime.value


class Context:
    """A login at one service, step by step; client and service prove to each other who they are."""

    def __init__(self, credentials: Credentials, service: str, host: str) -> None:
        self.is_complete = False
        self._credentials = credentials
        self._service = _name(f"{service}@{host}", _HOST_SERVICE)
        self._handle = _owned(self, "gss_delete_sec_context", None)

    def step(self, token: bytes) -> bytes:
        """Return the token to send after the one received, at first b"". Raises GssError."""
        with _output() as answer:
            major = _call(
                "gss_init_sec_context",
                *(self._credentials.handle, byref(self._handle), self._service, byref(_KERBEROS), _MUTUAL, 0, None),
                *(byref(_buffer(token)), None, byref(answer), None, None),
            )
            self.is_complete = not major & _CONTINUE_NEEDED
            return _content(answer)

    def unwrap(self, message: bytes) -> bytes:
        """Return the content of a message after checking its signature. Raises GssError."""
        with _output() as content:
            _call("gss_unwrap", self._handle, byref(_buffer(message)), byref(content), None, None)
            return _content(content)

    def wrap(self, content: bytes) -> bytes:
        """Return a signed message that is not encrypted. Raises GssError."""
        with _output() as message:
            _call("gss_wrap", self._handle, 0, 0, byref(_buffer(content)), None, byref(message))
            return _content(message)


class _Name(c_void_p):
    """A name of the library, which can be weakly referenced."""


def _name(text: str, kind: _Oid) -> c_void_p:
    name = _Name()
    _call("gss_import_name", byref(_buffer(text.encode())), byref(kind), byref(name))
    weakref.finalize(name, _release, "gss_release_name", c_void_p(name.value))
    return name


def _owned(owner: object, release: str, *arguments: Any) -> c_void_p:
    """Return an empty handle that is released when its owner is gone."""
    handle = c_void_p()
    weakref.finalize(owner, _release, release, handle, *arguments)
    return handle


def _release(name: str, handle: c_void_p, *arguments: Any) -> None:
    getattr(_library(), name)(byref(c_uint32()), byref(handle), *arguments)


def _buffer(content: bytes) -> _Buffer:
    buffer = _Buffer(len(content), ctypes.cast(c_char_p(content), c_void_p))
    buffer.kept = content
    return buffer


@contextmanager
def _output() -> Iterator[_Buffer]:
    """Yield a buffer whose content the library allocates, and free that."""
    buffer = _Buffer()
    try:
        yield buffer
    finally:
        _library().gss_release_buffer(byref(c_uint32()), byref(buffer))


def _content(buffer: _Buffer) -> bytes:
    return ctypes.string_at(buffer.value, buffer.length) if buffer.length else b""


def _call(name: str, *arguments: Any) -> int:
    """Call a function of the library; return its major status. Raises GssError."""
    minor = c_uint32()
    major = int(getattr(_library(), name)(byref(minor), *arguments))
    if major & _ERRORS:
        code = ctypes.c_int32(minor.value).value
        text = _text(minor.value, _OF_MECHANISM) if code else _text(major, _OF_LIBRARY)
        raise GssError(text, code)
    return major


def _text(status: int, kind: int) -> str:
    display = _library().gss_display_status
    with _output() as message:
        if display(byref(c_uint32()), status, kind, byref(_KERBEROS), byref(c_uint32()), byref(message)) & _ERRORS:
            return f"GSSAPI status {status}"
        return " ".join(_content(message).decode(errors="replace").split())
