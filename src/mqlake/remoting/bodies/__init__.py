"""The JSON bodies of requests and answers, by what they are about; `codec` turns them to and from bytes.

topic      DataVersion, TopicConfig, what a broker registers, TopicList
route      where a topic is: TopicRouteData, ClusterInfo, BrokerMemberGroup
pop        acknowledgements of many messages
client     requests and answers of clients: heartbeat, locks, assignments, offsets
admin      requests and answers of operators: statistics, connections, running state
"""
