"""The state of a broker: topics, groups, offsets, filters, clients, queue locks."""
