"""RocketMQ's Python client through everything it can do with a broker.

    python peer.py HOST:PORT PREFIX        one line of JSON

The topics PREFIX + N, F, D, X exist, and the groups that tests/interop/grpc_scenarios.py makes. With
ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY it signs.
"""

import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

PATIENCE_S = 90
keys = [os.environ[name] for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY") if name in os.environ]
configuration = ClientConfiguration(sys.argv[1], Credentials(*keys), request_timeout=20)
prefix = sys.argv[2]


def message(topic, body, **fields):
    made = Message()
    made.topic, made.body = prefix + topic, body.encode()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def described(received):
    return {
        "body": received.body.decode(),
        "id": received.message_id,
        "tag": received.tag,
        "keys": list(received.keys or ()),
        "p": (received.properties or {}).get("p"),
        "attempt": received.delivery_attempt,
    }


class CommitsOrphans(TransactionChecker):
    """And says of others what they will be: a broker may ask about them before a busy machine has ended them."""

    def check(self, received):
        return (
            TransactionResolution.ROLLBACK if received.body == b"rollback" else TransactionResolution.COMMIT
        )


class Listener(MessageListener):
    """Fails `fails` times for each body in it."""

    def __init__(self, count, fails):
        self.count, self.fails, self.seen, self.consumed = count, dict(fails), [], []
        self.done, self.lock = threading.Event(), threading.Lock()

    def consume(self, received):
        body = received.body.decode()
        with self.lock:
            self.seen.append(described(received))
            if self.fails.get(body, 0) > 0:
                self.fails[body] -= 1
                return ConsumeResult.FAILURE
            self.consumed.append(body)
            if len(self.consumed) >= self.count:
                self.done.set()
        return ConsumeResult.SUCCESS


def push(group, topic, count, fails):
    listener = Listener(count, fails)
    consumer = PushConsumer(configuration, prefix + group, listener, {prefix + topic: FilterExpression()})
    consumer.startup()
    if count:
        assert listener.done.wait(PATIENCE_S), listener.seen
    return consumer, listener


def simple(group, topic, expression="*"):
    consumer = SimpleConsumer(
        configuration, prefix + group, {prefix + topic: FilterExpression(expression)}, await_duration=5
    )
    consumer.startup()
    return consumer


def receive(consumer, count):
    """Acknowledges what it receives, in the order of arrival."""
    found, deadline = [], time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for received in consumer.receive(16, 20) or ():
            found.append(described(received))
            consumer.ack(received)
    return found


def main():
    result = {}
    producer = Producer(configuration, [prefix + topic for topic in "NFDX"], checker=CommitsOrphans())
    producer.startup()

    due = int(time.time()) + 10  # other things are done meanwhile
    recalled = producer.send(message("D", "recalled", delivery_timestamp=due))
    producer.send(message("D", "kept", delivery_timestamp=due))
    producer.recall_message(prefix + "D", recalled.recall_handle)

    sent = []
    for number in range(10):
        one = message("N", f"n-{number}", tag="ab"[number % 2], keys=f"k-{number}")
        one.add_property("p", str(number))
        sent.append(producer.send(one).message_id)
    result["sent"] = sent
    consumer = simple("gs", "N", "a")
    changed, deadline = None, time.monotonic() + PATIENCE_S
    received = []
    while len(received) < 5 and time.monotonic() < deadline:
        for one in consumer.receive(16, 20) or ():
            received.append(described(one))
            if changed is None:
                changed = one.body.decode()
                consumer.change_invisible_duration(one, 1)
            else:
                consumer.ack(one)
    result["simple"] = received
    result["again"] = receive(consumer, 1)
    result["changed"] = changed
    consumer.shutdown()

    consumer, listener = push("gp", "N", 10, {"n-0": 1})
    result["push"] = listener.seen
    consumer.shutdown()

    for number in range(6):
        producer.send(message("F", f"f-{number}", message_group="g1"))
    consumer, listener = push("go", "F", 6, {"f-2": 1})
    result["fifo"] = listener.consumed
    consumer.shutdown()

    consumer = simple("gd", "D")
    result["delayed"] = [one["body"] for one in receive(consumer, 1)]
    result["early"] = time.time() < due
    consumer.shutdown()

    producer.send(message("F", "dead", message_group="g2"))
    failing, listener = push("gq", "F", 6, {"dead": 99})
    deadline = time.monotonic() + PATIENCE_S
    while sum(one["body"] == "dead" for one in listener.seen) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    result["dead"] = sum(one["body"] == "dead" for one in listener.seen)

    for body in ("commit", "rollback", "orphan"):
        transaction = producer.begin_transaction()
        producer.send(message("X", body), transaction)
        if body != "orphan":
            getattr(transaction, body)()
    consumer = simple("gx", "X")
    result["transactions"] = sorted(one["body"] for one in receive(consumer, 2))
    consumer.shutdown()

    failing.shutdown()  # the client forwards what is dead after its last attempt, and says nothing about it
    producer.shutdown()
    print(json.dumps(result), flush=True)


main()
