"""Topics as Iceberg and Delta tables: the rows, the files, the commits, and how far each table has come."""
