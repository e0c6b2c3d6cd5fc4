"""The heads of a log: of each full log file a Parquet file with a row a record, all but its body."""
