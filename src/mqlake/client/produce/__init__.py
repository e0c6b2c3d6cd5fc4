"""Producers: sends, batches, transactions, requests with replies."""
