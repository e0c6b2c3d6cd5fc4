"""Message bodies as columns: JSON, Avro, Protobuf, and Confluent's wire format; what does not fit is kept as it is."""
