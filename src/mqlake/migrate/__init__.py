"""A MetaQ data directory becomes a RocketMQ store that RocketMQ's broker and mqlake open. Needs pyarrow, not Spark.

    orders-0/*.meta ─▶ columns ─▶ batches ─▶ topic orders, queue 0         append: one writer, a store has one log
    orders-1/*.meta ─▶                       topic orders, queue 1
    then read both sides again:  messages, bytes, digests per partition ─▶ equal or not                    compare

    data            the body                              id          KEYS, so that messages are found by it
    attribute       TAGS (or METAQ_ATTRIBUTE)             byte offset METAQ_OFFSET
    flag            flag; an empty attribute is a flag with bit 0 and no tag

A run that was killed resumes where the store ends: the last message of each queue says where it was in MetaQ. MetaQ
keeps no times, so a message is born when its segment was last written. Beside the store's own directories:

    metaq/migration.json                  the options of the first run; later runs must have the same     migration
    metaq/offsets/<topic>-<n>.parquet     a row per message: offset (bytes), queueOffset, id                compare
    config/topics.json                    the topics, for the broker                                      positions
    config/consumerOffset.json            how far consumer groups had come                                positions
"""
