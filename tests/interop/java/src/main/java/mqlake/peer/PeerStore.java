package mqlake.peer;

import com.alibaba.fastjson2.JSONObject;
import java.io.File;
import java.lang.reflect.Method;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** One DefaultMessageStore, configured by a flat map of RocketMQ's own keys, with the broker's put hooks. */
final class PeerStore {
    /** A put with this property (base64) gets its value as the filter bitmap, as the broker's filter would set it. */
    static final String BIT_MAP_PROPERTY = "PEER_BIT_MAP";

    private static final BrokerStatsManager STATS = new BrokerStatsManager("peer", false);

    final DefaultMessageStore store;
    final MessageStoreConfig config;
    final boolean lastExitOk;
    double loadSeconds;
    // Buffers which the store keeps per putting thread go when the thread goes.
    private final ExecutorService thread = Executors.newSingleThreadExecutor();

    private PeerStore(DefaultMessageStore store, MessageStoreConfig config, boolean lastExitOk) {
        this.store = store;
        this.config = config;
        this.lastExitOk = lastExitOk;
    }

    /** Loads (recovers) and starts the store in request.root; the request is as {@link Server} says. */
    static PeerStore open(JSONObject request) throws Exception {
        PeerStore opened = create(request);
        opened.load();
        opened.start();
        return opened;
    }

    static PeerStore create(JSONObject request) throws Exception {
        String root = request.getString("root");
        Properties properties = new Properties();
        properties.put("storePathRootDir", root);
        properties.put("storePathCommitLog", root + File.separator + "commitlog");
        properties.put("haListenPort", "0");
        JSONObject asked = request.getJSONObject("config");
        if (asked != null) {
            asked.forEach((key, value) -> properties.put(key, String.valueOf(value)));
        }
        MessageStoreConfig config = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        for (Object key : properties.keySet()) {
            if (!hasSetter(config, (String) key) && !hasSetter(brokerConfig, (String) key)) {
                throw new IllegalArgumentException("unknown configuration key " + key);
            }
        }
        MixAll.properties2Object(properties, config);
        MixAll.properties2Object(properties, brokerConfig);

        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        JSONObject attributesByTopic = request.getJSONObject("topics");
        if (attributesByTopic != null) {
            for (String topic : attributesByTopic.keySet()) {
                TopicConfig topicConfig = new TopicConfig(topic);
                Map<String, String> attributes = new HashMap<>();
                attributesByTopic.getJSONObject(topic).forEach((key, value) -> attributes.put(key, (String) value));
                topicConfig.setAttributes(attributes);
                topics.put(topic, topicConfig);
            }
        }

        boolean lastExitOk = !new File(StorePathConfigHelper.getAbortFile(root)).exists();
        DefaultMessageStore store = new DefaultMessageStore(config, STATS, null, brokerConfig, topics);
        store.getDispatcherList().addFirst(PeerStore::setBitMap);
        PeerStore created = new PeerStore(store, config, lastExitOk);
        if (request.getBooleanValue("brokerHooks", true)) {
            store.getPutMessageHookList().add(new BrokerHooks.BeforePut(created));
            store.getPutMessageHookList().add(new BrokerHooks.Schedule(created));
        }
        return created;
    }

    void load() {
        long begin = System.nanoTime();
        boolean loaded = store.load();
        loadSeconds = (System.nanoTime() - begin) / 1e9;
        if (!loaded) {
            throw new IllegalStateException("load() says false");
        }
    }

    void start() throws Exception {
        store.start();
    }

    private static boolean hasSetter(Object config, String key) {
        String setter = "set" + Character.toUpperCase(key.charAt(0)) + key.substring(1);
        for (Method method : config.getClass().getMethods()) {
            if (method.getName().equals(setter)) {
                return true;
            }
        }
        return false;
    }

    private static void setBitMap(DispatchRequest request) {
        Map<String, String> properties = request.getPropertiesMap();
        if (properties != null && properties.containsKey(BIT_MAP_PROPERTY)) {
            request.setBitMap(Base64.getDecoder().decode(properties.get(BIT_MAP_PROPERTY)));
        }
    }

    <T> T onOwnThread(Callable<T> work) throws Exception {
        return thread.submit(work).get();
    }

    /** Waits until every record that may be dispatched has been. */
    void settle() throws InterruptedException {
        long deadline = System.nanoTime() + 240_000_000_000L;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("still " + store.dispatchBehindBytes() + " bytes to dispatch");
            }
            Thread.sleep(1);
        }
    }

    JSONObject offsets() {
        JSONObject line = new JSONObject();
        line.put("minPhysicalOffset", store.getMinPhyOffset());
        line.put("maxPhysicalOffset", store.getMaxPhyOffset());
        line.put("flushedWhere", store.getFlushedWhere());
        line.put("confirmOffset", store.getConfirmOffset());
        StoreCheckpoint checkpoint = store.getStoreCheckpoint();
        line.put("physicMsgTimestamp", checkpoint.getPhysicMsgTimestamp());
        line.put("logicsMsgTimestamp", checkpoint.getLogicsMsgTimestamp());
        line.put("indexMsgTimestamp", checkpoint.getIndexMsgTimestamp());
        return line;
    }

    /** A clean shutdown: everything dispatched and flushed, the abort file gone. */
    JSONObject close() throws InterruptedException {
        settle();
        thread.shutdown();
        long begin = System.nanoTime();
        // The store sleeps three seconds before it shuts down, for requests under way; there are none here.
        Thread.currentThread().interrupt();
        store.shutdown();
        Thread.interrupted();
        return JSONObject.of(
            "clean", !new File(StorePathConfigHelper.getAbortFile(config.getStorePathRootDir())).exists(),
            "shutdownSeconds", (System.nanoTime() - begin) / 1e9);
    }
}
