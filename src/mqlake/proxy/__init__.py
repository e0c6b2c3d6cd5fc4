"""The gRPC endpoint of RocketMQ 5 clients."""
