"""The broker's figures, under RocketMQ's names."""
