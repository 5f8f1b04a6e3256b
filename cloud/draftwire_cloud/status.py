"""Exceptions -> gRPC status, the cloud's one place for it."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from draftwire_protocol.errors import DraftwireError, OverloadedError

#: Key of the trailing metadata in which rich error details travel (grpcio-status reads it).
DETAILS_KEY = "grpc-status-details-bin"
#: Longest message, in bytes of UTF-8: gRPC drops headers of more than 8 KB, and the status with them.
_MAX_MESSAGE_BYTES = 1000
_RETRY_AFTER = Duration(seconds=1)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: DraftwireError) -> NoReturn:
    """End the call with the error's status, its message and machine-readable details."""
    code = grpc.StatusCode[error.status]
    details = [_packed(ErrorInfo(reason=type(error).__name__, domain="draftwire"))]
    if isinstance(error, OverloadedError):
        details.append(_packed(RetryInfo(retry_delay=_RETRY_AFTER)))
    message = str(error).encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
    status = Status(code=code.value[0], message=message, details=details)
    metadata = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(code, message, trailing_metadata=metadata)
    raise AssertionError("abort always raises")


def _packed(message: ErrorInfo | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
