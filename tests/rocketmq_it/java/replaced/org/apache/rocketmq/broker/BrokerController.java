package org.apache.rocketmq.broker;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.offset.ConsumerOrderInfoManager;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.OffsetNotFoundException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.AssumptionViolatedException;

/**
 * A broker of another process, in place of one that a test starts in its own: what tests ask of the controller becomes
 * a request. The nth that a test makes is the nth by name of those that the name server knows.
 *
 * <p>A test that does what no request can do (restart the broker, call its filters) is skipped, with the reason.
 */
public class BrokerController {
    public static final long TIMEOUT_MS = 30_000;
    private static final List<RPCHook> HOOKS = new CopyOnWriteArrayList<>();
    /** How often mqlake writes its state down, as this harness starts it, and time to do so. */
    private static final long WRITTEN_MS = 1_000;
    private static DefaultMQAdminExt admin;
    private static int made;

    private final MessageStoreConfig storeConfig;
    private String name;
    private String address;
    private BrokerConfig config;
    private DefaultMessageStore store;

    public BrokerController(BrokerConfig brokerConfig, NettyServerConfig serverConfig, NettyClientConfig clientConfig,
        MessageStoreConfig storeConfig) {
        this.storeConfig = storeConfig;
    }

    /** What may be asked of all brokers, or of the name server. */
    public interface Request<T> {
        T of(DefaultMQAdminExt admin) throws Exception;
    }

    /** As `Request`, without an answer. */
    public interface Order {
        void of(DefaultMQAdminExt admin) throws Exception;
    }

    public static synchronized <T> T answer(Request<T> request) {
        try {
            if (admin == null) {
                admin = new DefaultMQAdminExt(TIMEOUT_MS);
                admin.setInstanceName("controllers");
                admin.setNamesrvAddr("127.0.0.1:" + Integer.getInteger("mqlake.namesrv"));
                admin.start();
            }
            return request.of(admin);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    public static void ask(Order order) {
        answer(admin -> {
            order.of(admin);
            return null;
        });
    }

    /** Asked by the address of a broker rather than by a topic's route. */
    public static MQClientAPIImpl calls(DefaultMQAdminExt admin) {
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    public static AssumptionViolatedException notFromOutside(String what) {
        return new AssumptionViolatedException("not from outside: " + what);
    }

    public boolean initialize() {
        Map<String, BrokerData> brokers = answer(admin -> admin.examineBrokerClusterInfo().getBrokerAddrTable());
        List<BrokerData> byName = new ArrayList<>(new TreeMap<>(brokers).values());
        BrokerData broker = byName.get(made++ % byName.size());
        name = broker.getBrokerName();
        address = broker.getBrokerAddrs().get(MixAll.MASTER_ID);
        config = new ConfigByRequest();
        config.setBrokerName(name);
        config.setBrokerClusterName(broker.getCluster());
        store = new DefaultMessageStore(address, name);
        return true;
    }

    public void start() {
    }

    public void shutdown() {
        throw notFromOutside("a restart of the broker");
    }

    /** The hooks that tests give to servers, for the clients of this process. */
    public static RPCHook hooks() {
        return new RPCHook() {
            @Override
            public void doBeforeRequest(String remoteAddress, RemotingCommand request) {
                request.makeCustomHeaderToNet();
                HOOKS.forEach(hook -> hook.doBeforeRequest(remoteAddress, request));
            }

            @Override
            public void doAfterResponse(String remoteAddress, RemotingCommand request, RemotingCommand response) {
            }
        };
    }

    public void registerServerRPCHook(RPCHook hook) {
        if (!HOOKS.contains(hook)) {
            HOOKS.add(hook);
        }
    }

    /** A topic that is made or changed by a request is registered with it. */
    public void registerBrokerAll(boolean checkOrderConfig, boolean oneway, boolean forceRegister) {
    }

    public String getBrokerAddr() {
        return address;
    }

    public BrokerConfig getBrokerConfig() {
        return config;
    }

    public MessageStoreConfig getMessageStoreConfig() {
        return storeConfig;
    }

    public DefaultMessageStore getMessageStore() {
        return store;
    }

    public OuterApi getBrokerOuterAPI() {
        return new OuterApi();
    }

    public CleanService getTopicQueueMappingCleanService() {
        return new CleanService();
    }

    public TopicConfigs getTopicConfigManager() {
        return new TopicConfigs();
    }

    public Groups getSubscriptionGroupManager() {
        return new Groups();
    }

    public Offsets getConsumerOffsetManager() {
        return new Offsets();
    }

    public ConsumerFilterManager getConsumerFilterManager() {
        throw notFromOutside("what the broker has compiled of a filter");
    }

    /** RocketMQ's own class, with what the broker has written down. */
    public ConsumerOrderInfoManager getConsumerOrderInfoManager() {
        Path file = Paths.get(System.getProperty("mqlake.stores"), name, "config", "consumerOrderInfo.json");
        try {
            Thread.sleep(WRITTEN_MS);
            ConsumerOrderInfoManager manager = new ConsumerOrderInfoManager();
            manager.decode(new String(Files.readAllBytes(file), StandardCharsets.UTF_8));
            return manager;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** A broker of another process asks the name server by itself. */
    public static class OuterApi {
        public void refreshMetadata() {
        }
    }

    /** It wakes up by itself: this harness starts mqlake with a short interval. */
    public static class CleanService {
        public void wakeup() {
        }
    }

    /** The topics of the broker. */
    public class TopicConfigs {
        public Map<String, TopicConfig> getTopicConfigTable() {
            return answer(admin -> admin.getAllTopicConfig(address, TIMEOUT_MS).getTopicConfigTable());
        }

        public void updateTopicConfig(TopicConfig topic) {
            ask(admin -> admin.createAndUpdateTopicConfig(address, topic));
        }
    }

    /** The subscription groups of the broker. */
    public class Groups {
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            return answer(admin -> {
                SubscriptionGroupConfig found = null;
                try {
                    found = admin.examineSubscriptionGroupConfig(address, group);
                } catch (MQBrokerException e) {
                    // one that is not there is made, as the controller's method does
                }
                if (found == null) {
                    found = new SubscriptionGroupConfig();
                    found.setGroupName(group);
                }
                return found;
            });
        }

        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig group) {
            ask(admin -> admin.createAndUpdateSubscriptionGroupConfig(address, group));
        }
    }

    /** What the broker has of groups' progress. */
    public class Offsets {
        public long queryOffset(String group, String topic, int queueId) {
            QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(queueId);
            header.setBrokerName(name);
            return answer(admin -> {
                try {
                    return calls(admin).queryConsumerOffset(address, header, TIMEOUT_MS);
                } catch (OffsetNotFoundException e) {
                    return -1L;
                }
            });
        }

        public long queryPullOffset(String group, String topic, int queueId) {
            MessageQueue queue = new MessageQueue(topic, name, queueId);
            return answer(admin -> calls(admin).getConsumeStats(address, group, topic, TIMEOUT_MS))
                .getOffsetTable().get(queue).getPullOffset();
        }
    }

    /** What tests set in the broker's configuration goes to the broker. */
    private class ConfigByRequest extends BrokerConfig {
        private void set(String key, Object value) {
            Properties change = new Properties();
            change.setProperty(key, String.valueOf(value));
            ask(admin -> admin.updateBrokerConfig(address, change));
        }

        @Override
        public void setEnableSingleTopicRegister(boolean value) {
            super.setEnableSingleTopicRegister(value);
            set("enableSingleTopicRegister", value);
        }

        @Override
        public void setEnableSplitRegistration(boolean value) {
            super.setEnableSplitRegistration(value);
            set("enableSplitRegistration", value);
        }

        @Override
        public void setLongPollingEnable(boolean value) {
            super.setLongPollingEnable(value);
            set("longPollingEnable", value);
        }

        @Override
        public void setShortPollingTimeMills(long value) {
            super.setShortPollingTimeMills(value);
            set("shortPollingTimeMills", value);
        }

        @Override
        public void setUseServerSideResetOffset(boolean value) {
            super.setUseServerSideResetOffset(value);
            set("useServerSideResetOffset", value);
        }

        @Override
        public void setEstimateAccumulation(boolean value) {
            super.setEstimateAccumulation(value);
            set("estimateAccumulation", value);
        }

        @Override
        public void setEnablePopBufferMerge(boolean value) {
            super.setEnablePopBufferMerge(value);
            set("enablePopBufferMerge", value);
        }

        @Override
        public void setEnableNotifyAfterPopOrderLockRelease(boolean value) {
            super.setEnableNotifyAfterPopOrderLockRelease(value);
            set("enableNotifyAfterPopOrderLockRelease", value);
        }

        @Override
        public void setTransactionCheckInterval(long value) {
            super.setTransactionCheckInterval(value);
            set("transactionCheckInterval", value);
        }
    }
}
