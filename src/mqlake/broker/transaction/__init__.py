"""Transactional messages: stored at once, seen by consumers when their producer says so.

    SEND_MESSAGE, TRAN_MSG=true ──▶ RMQ_SYS_TRANS_HALF_TOPIC       the half message
    END_TRANSACTION commit ───────▶ its own topic and queue        a record of its own, which names the half message
    END_TRANSACTION, either ──────▶ RMQ_SYS_TRANS_OP_HALF_TOPIC    "12,13,17,": these half messages have ended
    no word for too long ─────────▶ CHECK_TRANSACTION_STATE        to some producer of the group, again and again

    messages         what each of these messages looks like
    service          halves taken, ends noted, what is still open looked through
    check            the rounds, and whom to ask
    end_transaction  END_TRANSACTION
    metrics          half messages that are open, by topic: config/transactionMetrics

docs/transactions.md is the guide. Facts: RocketMQ 5.3.3, broker.transaction and EndTransactionProcessor.
"""
