"""The name server: who has which topic.

route_info_manager   brokers, clusters, topics and routes       state only
kv_config            namespaces of keys and values, in one file
config               what an operator may set
processors           request code → what it means
server               all of it on a port
"""
