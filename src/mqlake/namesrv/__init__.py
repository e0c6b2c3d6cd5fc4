"""The name server: which brokers have which topic.

route_info_manager   brokers, clusters, topics and routes       state only
kv_config            namespaces of keys and values, in one file
config               settings
processors           request code → processor
server               all of it on a port
"""
