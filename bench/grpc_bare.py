"""A grpc.aio service that answers every SendMessage and every AckMessage at once: what Python's gRPC takes by itself.

python bench/grpc_bare.py      says `grpc PORT` on its stdout
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from mqlake.proxy.service import SERVICE
from mqlake.proxy.status import OK
from mqlake.remoting.loop import run


def handler(name: str) -> Any:
    method = SERVICE.methods_by_name[name]
    answer_class = GetMessageClass(method.output_type)

    async def answer(_request: Any, _context: Any) -> Any:
        return answer_class(status=OK)

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=answer_class.SerializeToString,
    )


async def main() -> None:
    server = grpc.aio.server()
    handlers = {name: handler(name) for name in ("SendMessage", "AckMessage")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"grpc {port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(main())
