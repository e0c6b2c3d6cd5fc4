package org.apache.rocketmq.store;

import java.util.Set;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.message.MessageQueue;

/** The store of a broker in another process, as far as tests look into it. */
public class DefaultMessageStore {
    private final String address;
    private final String brokerName;

    public DefaultMessageStore(String address, String brokerName) {
        this.address = address;
        this.brokerName = brokerName;
    }

    public long getMinOffsetInQueue(String topic, int queueId) {
        MessageQueue queue = new MessageQueue(topic, brokerName, queueId);
        return BrokerController.answer(
            admin -> BrokerController.calls(admin).getMinOffset(address, queue, BrokerController.TIMEOUT_MS));
    }

    public long getMaxOffsetInQueue(String topic, int queueId) {
        MessageQueue queue = new MessageQueue(topic, brokerName, queueId);
        return BrokerController.answer(
            admin -> BrokerController.calls(admin).getMaxOffset(address, queue, BrokerController.TIMEOUT_MS));
    }

    public long dispatchBehindBytes() {
        return Long.parseLong(BrokerController.answer(
            admin -> admin.fetchBrokerRuntimeStats(address)).getTable().get("dispatchBehindBytes"));
    }

    public long estimateMessageCount(String topic, int queueId, long from, long to, MessageFilter filter) {
        throw BrokerController.notFromOutside("an estimate of what a filter lets through");
    }

    public int cleanUnusedTopic(Set<String> retained) {
        throw BrokerController.notFromOutside("taking away the data of a topic that is still configured");
    }

    public void destroy() {
    }
}
