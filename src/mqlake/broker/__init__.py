"""The broker: serves a store to clients over the network."""
