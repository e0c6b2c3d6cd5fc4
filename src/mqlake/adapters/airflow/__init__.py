"""A provider of Airflow: tasks that send messages, and tasks and DAGs that wait for them. Guide: docs/airflow.md.

    provider   what Airflow learns from the entry point: the connection type rocketmq and the message queue
    hook       RocketHook: a connection of Airflow as a client
    operator   RocketPublishOperator: a task that sends
    trigger    RocketMessageTrigger: waits in the triggerer, on its event loop
    sensor     RocketMessageSensor: a task that waits, deferred to that trigger or not
    queue      what makes MessageQueueTrigger(scheme="rocketmq") that trigger
    events     a message as JSON, for XCom and for events of assets

Nothing is imported here: Airflow reads `provider` in each of its processes.
"""
