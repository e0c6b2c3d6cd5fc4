"""Requests to servers, one method for each request code: to name servers, and to brokers by clients and operators."""
