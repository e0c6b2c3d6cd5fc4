"""Scanned records to Arrow rows: columns, filters, properties, bodies."""
