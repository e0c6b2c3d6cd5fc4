"""The generated code of package apache.rocketmq.v2: written by tools/make_proto.py from the .proto files beside it."""
