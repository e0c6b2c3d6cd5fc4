"""The store engine: files, commit log, flush, dispatch, consume queues, index, recovery and cleaning."""
