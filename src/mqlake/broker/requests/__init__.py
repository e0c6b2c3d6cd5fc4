"""One processor for each family of requests from clients."""
