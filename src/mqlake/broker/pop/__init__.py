"""Pop consumption: the broker hands out messages for a time, and again to others unless they are acknowledged.

    POP_MESSAGE ──▶ pop_message ──▶ messages, invisible for a while ──▶ ACK_MESSAGE ──▶ ack
                        │ one checkpoint a queue                           │ an acknowledgement
                        ▼                                                  ▼
                revive topic, by way of the timer wheel: about when the time is over
                        │
                        ▼
                    revive: messages without acknowledgement ──▶ the group's retry topic ──▶ popped again

checkpoint     checkpoints and acknowledgements as bytes
queues         offsets, locks and counts of each (topic, group, queue)
order          orderly pop, which has no checkpoints: consumerOrderInfo.json
polling        requests that wait for messages
pop_message, ack, notification, assignment     the requests
revive         what happens when the time is over
recover        offsets after a crash, from the checkpoints in the log
state, service what holds them together
"""
