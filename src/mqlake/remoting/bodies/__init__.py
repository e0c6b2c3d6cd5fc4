"""The JSON bodies of requests and answers, by what they are about; `codec` turns them to and from bytes.

topic      DataVersion, TopicConfig, what a broker registers, TopicList
route      where a topic is: TopicRouteData, ClusterInfo, BrokerMemberGroup
client     what clients say and are told: heartbeat, locks, assignments, offsets
admin      what operators are told: statistics, connections, running state
"""
