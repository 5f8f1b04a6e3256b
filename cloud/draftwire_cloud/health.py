"""The client half of the health check, for probes of containers and scripts."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire_protocol.messages import SERVICE_NAME


def ask_health(address: str, timeout_s: float) -> str:
    """The service's readiness: ``SERVING``, ``NOT_SERVING``, or ``UNREACHABLE``.

    Args:
        address: ``HOST:PORT``.
        timeout_s: give up after this, in seconds.
    """
    request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.RpcError:
            return "UNREACHABLE"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
