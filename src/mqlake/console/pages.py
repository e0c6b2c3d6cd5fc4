"""Every page of the console: path, query, template and parameters. Routes, OpenAPI and MCP tools come from this."""

from __future__ import annotations

from mqlake.console.ask import PAGE_PARAMS, Page, Param
from mqlake.console.queries import brokers, groups, messages, store, topics

_FILTER = Param("filter", "Only names that contain this text.")
_STORE = Param("store", "Name of the store, as /stores lists them.", required=True)
_TOPIC = Param("topic", "Name of the topic.", required=True)
_GROUP = Param("group", "Name of the consumer group.", required=True)
_ADDRESS = Param("address", "Address of the broker, host:port.", required=True)
_TIME = "milliseconds since 1970, or ISO 8601."
_SORT = Param("sort", "`name`, or `lag`: what is furthest behind first.")

STORE_PAGES = (
    Page("/stores", "Stores", "stores.html", store.stores, of="store", tool="list_stores"),
    Page(
        "/stores/{store}", "Store", "store.html", store.store, (_STORE, *PAGE_PARAMS), "store_info", "store"
    ),
    Page(
        "/stores/{store}/queues",
        "Queues",
        "store_queues.html",
        store.queues,
        (_STORE, _FILTER, *PAGE_PARAMS),
        "store_queues",
        "store",
    ),
    Page(
        "/stores/{store}/queue",
        "Queue",
        "store_queue.html",
        store.queue,
        (
            _STORE,
            _TOPIC,
            Param("queue", "Id of the queue.", "integer"),
            Param("offset", "First queue offset to show; the newest without it.", "integer"),
            PAGE_PARAMS[1],
        ),
        "store_queue",
        "store",
    ),
    Page(
        "/stores/{store}/log",
        "Log",
        "store_log.html",
        store.log,
        (_STORE, Param("offset", "Physical offset of the first record.", "integer"), PAGE_PARAMS[1]),
        "store_log",
        "store",
    ),
    Page(
        "/stores/{store}/record",
        "Record",
        "store_record.html",
        store.record,
        (_STORE, Param("offset", "Physical offset of the record.", "integer", required=True)),
        "store_record",
        "store",
    ),
    Page(
        "/stores/{store}/search",
        "Search",
        "store_search.html",
        store.search_store,
        (
            _STORE,
            Param("id", "Message id of a broker or a producer."),
            Param("topic", "Only this topic."),
            Param("key", "One of the keys, or the producer's id."),
            Param("tag", "Only this tag."),
            Param("from", f"Stored then or later: {_TIME}"),
            Param("to", f"Stored then or before: {_TIME}"),
            Param("text", "Text in the body, after it is decompressed."),
            Param("after", "Physical offset to go on from, `next` of the last answer.", "integer"),
            PAGE_PARAMS[1],
        ),
        "store_search",
        "store",
    ),
    Page(
        "/stores/{store}/index",
        "Index file",
        "store_index.html",
        store.index_file,
        (
            _STORE,
            Param("file", "Name of the index file.", required=True),
            Param("entry", "Number of the first entry to show.", "integer"),
            PAGE_PARAMS[1],
        ),
        "store_index_file",
        "store",
    ),
    Page(
        "/stores/{store}/checkpoint",
        "Checkpoint",
        "store_checkpoint.html",
        store.checkpoint,
        (_STORE,),
        "store_checkpoint",
        "store",
    ),
    Page(
        "/stores/{store}/verify",
        "Verify",
        "store_verify.html",
        store.verify,
        (_STORE, *PAGE_PARAMS),
        "store_findings",
        "store",
        action=store.start_verify,
        harmless=True,
    ),
    Page(
        "/stores/{store}/dropped",
        "Kept copies",
        "store_dropped.html",
        store.dropped,
        (_STORE, *PAGE_PARAMS),
        "store_dropped",
        "store",
    ),
    Page(
        "/stores/{store}/dropped/copy",
        "Kept copy",
        "store_copy.html",
        store.dropped_copy,
        (
            _STORE,
            Param("name", "Name of the copy, as listed.", required=True),
            Param("offset", "First byte to show.", "integer"),
        ),
        "store_dropped_copy",
        "store",
    ),
)

_MESSAGE_PARAMS = (
    _TOPIC,
    Param("id", "Message id of a broker or a producer."),
    Param("key", "One of the keys of the message."),
    Param("tag", "Only this tag."),
    Param("text", "Text in the body."),
    Param("from", f"Stored then or later: {_TIME}"),
    Param("to", f"Stored then or before: {_TIME}"),
    Param("queue", "Only this queue, as `broker/id`."),
    Param("skip", "Messages to skip at `to`: `next` of the last answer has both.", "integer"),
    PAGE_PARAMS[1],
)

CLUSTER_PAGES = (
    Page(
        "/topics",
        "Topics",
        "topics.html",
        topics.topics,
        (
            _FILTER,
            _SORT,
            Param("system", "Include topics of RocketMQ itself, retries and dead letters.", "boolean"),
            *PAGE_PARAMS,
        ),
        "list_topics",
        "cluster",
    ),
    Page(
        "/topics/{topic}",
        "Topic",
        "topic.html",
        topics.topic,
        (_TOPIC, *PAGE_PARAMS),
        "show_topic",
        "cluster",
    ),
    Page(
        "/topics/{topic}/messages",
        "Messages",
        "messages.html",
        messages.messages,
        _MESSAGE_PARAMS,
        "find_messages",
        "cluster",
    ),
    Page(
        "/topics/{topic}/message",
        "Message",
        "message.html",
        messages.message,
        (
            _TOPIC,
            Param("broker", "Name of the broker.", required=True),
            Param("queue", "Id of the queue.", "integer", required=True),
            Param("offset", "Offset of the message in the queue.", "integer", required=True),
        ),
        "show_message",
        "cluster",
    ),
    Page(
        "/messages",
        "Find a message",
        "find.html",
        messages.find,
        (Param("id", "Message id."), Param("topic", "Needed for the id of a producer.")),
        "find_message_by_id",
        "cluster",
    ),
    Page(
        "/groups",
        "Groups",
        "groups.html",
        groups.groups,
        (_FILTER, _SORT, *PAGE_PARAMS),
        "list_groups",
        "cluster",
    ),
    Page(
        "/groups/{group}",
        "Group",
        "group.html",
        groups.group,
        (_GROUP, Param("topic", "Only this topic."), *PAGE_PARAMS),
        "show_group",
        "cluster",
    ),
    Page("/brokers", "Brokers", "brokers.html", brokers.brokers, PAGE_PARAMS, "list_brokers", "cluster"),
    Page(
        "/brokers/{address}", "Broker", "broker.html", brokers.broker, (_ADDRESS,), "show_broker", "cluster"
    ),
    Page(
        "/brokers/{address}/settings",
        "Settings",
        "settings.html",
        brokers.settings,
        (_ADDRESS, _FILTER, *PAGE_PARAMS),
        "broker_settings",
        "cluster",
        action=brokers.change_setting,
        form=(
            Param("key", "Name of the setting.", required=True),
            Param("value", "New value.", required=True),
            Param("confirm", "Change it; without, the answer shows what would change.", "boolean"),
        ),
    ),
)

PAGES = (
    Page("/", "Overview", "overview.html", brokers.overview, tool="overview"),
    *CLUSTER_PAGES,
    *STORE_PAGES,
)
