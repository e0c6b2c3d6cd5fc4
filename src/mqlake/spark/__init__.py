"""Spark reads the log in place: PySpark data sources and the jobs made of them."""
