"""What a broker remembers: topics, groups, offsets, filters, clients, queue locks."""
