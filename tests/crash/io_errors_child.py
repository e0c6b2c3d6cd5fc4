"""A writer for the I/O error tests: puts numbered messages and prints what each was answered.

`python -m tests.crash.io_errors_child ROOT COUNT SETTINGS_JSON`, one JSON line a put: [number, status, reason]; the
last line is the list of reasons why the store takes no messages.
"""

from __future__ import annotations

import json
import sys

from mqlake.message import MessageExtBrokerInner
from mqlake.store.message_store import open_store

HOST = ("127.0.0.1", 10911)


def message(number: int) -> MessageExtBrokerInner:
    made = MessageExtBrokerInner("T", b"%d:" % number + b"x" * 500, keys=f"k{number}")
    made.born_host = made.store_host = HOST
    return made


def main(root: str, count: int, settings: dict[str, object]) -> None:
    store = open_store(root, settings)
    for number in range(count):
        result = store.put_message(message(number))
        print(json.dumps([number, result.status.name, result.reason]), flush=True)
    print(json.dumps(store.running_flags.reasons()), flush=True)
    store.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
