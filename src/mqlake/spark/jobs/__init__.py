"""The pipeline: jobs made of the sources, each a function that takes and returns DataFrames, and a command.

    verify    is a store whole                        export    messages to Parquet, as they come
    rebuild   its queues and index made again         ingest    any rows to messages
    search    messages by what is known of them       compact   the last message of each key, as a store
    stats     figures and pictures of a log           replay    messages to another topic or cluster
    diff      what two stores do not have in common

`mqlake spark JOB` is in mqlake.cli.spark. One module a job; importing this package imports none of them.
"""
