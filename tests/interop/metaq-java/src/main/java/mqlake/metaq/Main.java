package mqlake.metaq;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.TopicBrowser;
import com.taobao.metamorphosis.client.XAMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.client.producer.XAMessageProducer;
import com.taobao.metamorphosis.server.assembly.MetaMorphosisBroker;
import com.taobao.metamorphosis.server.store.FileMessageSet;
import com.taobao.metamorphosis.server.store.MessageStoreManager;
import com.taobao.metamorphosis.server.utils.MetaConfig;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.codehaus.jackson.map.ObjectMapper;

/** Serves JSON lines on stdin and stdout: the original client and broker, at our request. */
public final class Main {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Map<String, XAMetaMessageSessionFactory> factories = new HashMap<>();
    private final Map<String, MessageProducer> producers = new HashMap<>();
    private final Map<String, XAMessageProducer> xaProducers = new HashMap<>();
    private final Map<String, Consumer> consumers = new HashMap<>();
    private final Map<String, MetaMorphosisBroker> brokers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // whatever the libraries print is no answer
        Main main = new Main();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out.println("{\"ready\":true}");
        out.flush();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("result", main.serve(JSON.readValue(line, Map.class)));
            } catch (Throwable e) {
                e.printStackTrace();
                answer.put("error", e.toString());
                if (e instanceof XAException) {
                    answer.put("xa", ((XAException) e).errorCode);
                }
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        main.close();
        Runtime.getRuntime().halt(0);
    }

    private Object serve(Map<String, Object> request) throws Exception {
        String op = (String) request.get("op");
        switch (op) {
            case "send":
                return send(request);
            case "xa":
                return xa(request);
            case "xaRecover":
                return recover(request);
            case "subscribe":
                consumers.put((String) request.get("name"), new Consumer(factory(request), request));
                return null;
            case "take":
                return consumers.get(request.get("name")).take(number(request, "count"), number(request, "timeoutMs"));
            case "unsubscribe":
                consumers.remove(request.get("name")).consumer.shutdown();
                return null;
            case "browse":
                return browse(request);
            case "stats":
                return String.valueOf(factory(request).getStats((String) request.get("item")));
            case "startBroker":
                startBroker(request);
                return null;
            case "stopBroker":
                brokers.remove(request.get("name")).stop();
                return null;
            case "open":
                return open(request);
            case "disconnect":
                disconnect((String) request.get("zk"));
                return null;
            default:
                throw new IllegalArgumentException(op);
        }
    }

    private static int number(Map<String, Object> request, String key) {
        return ((Number) request.get(key)).intValue();
    }

    private XAMetaMessageSessionFactory factory(Map<String, Object> request) throws Exception {
        String zk = (String) request.get("zk");
        // a session refuses a second consumer of one group and topic, so such consumers have sessions of their own
        String key = request.containsKey("session") ? zk + "#" + request.get("session") : zk;
        XAMetaMessageSessionFactory factory = factories.get(key);
        if (factory == null) {
            MetaClientConfig config = new MetaClientConfig();
            ZKConfig zkConfig = new ZKConfig();
            zkConfig.zkConnect = zk;
            zkConfig.zkSyncTimeMs = 100;
            config.setZkConfig(zkConfig);
            factory = new XAMetaMessageSessionFactory(config);
            factories.put(key, factory);
        }
        return factory;
    }

    private void disconnect(String zk) throws Exception {
        for (String key : new ArrayList<>(producers.keySet())) {
            if (key.startsWith(zk + "|")) {
                producers.remove(key).shutdown();
            }
        }
        xaProducers.keySet().removeIf(key -> key.startsWith(zk + "|"));
        for (String key : new ArrayList<>(factories.keySet())) {
            if (key.equals(zk) || key.startsWith(zk + "#")) {
                factories.remove(key).shutdown();
            }
        }
    }

    private static Message message(String topic, Map<String, Object> fields) {
        byte[] data = Base64.getDecoder().decode((String) fields.get("data"));
        return new Message(topic, data, (String) fields.get("attribute"));
    }

    private static Map<String, Object> fields(Message message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("id", message.getId());
        fields.put("data", Base64.getEncoder().encodeToString(message.getData()));
        fields.put("attribute", message.getAttribute());
        fields.put("flag", com.taobao.metamorphosis.MessageAccessor.getFlag(message));
        fields.put("partition", message.getPartition() == null ? null : message.getPartition().toString());
        return fields;
    }

    @SuppressWarnings("unchecked")
    private Object send(Map<String, Object> request) throws Exception {
        String topic = (String) request.get("topic");
        String key = request.get("zk") + "|" + topic;
        MessageProducer producer = producers.get(key);
        if (producer == null) {
            producer = factory(request).createProducer();
            producer.publish(topic);
            producers.put(key, producer);
        }
        String transaction = (String) request.get("transaction");
        if (transaction != null) {
            producer.beginTransaction();
        }
        List<Object> results = new ArrayList<>();
        for (Map<String, Object> each : (List<Map<String, Object>>) request.get("messages")) {
            results.add(result(producer.sendMessage(message(topic, each), 10, TimeUnit.SECONDS), null));
        }
        if ("commit".equals(transaction)) {
            producer.commit();
        } else if ("rollback".equals(transaction)) {
            producer.rollback();
        }
        return results;
    }

    private static Map<String, Object> result(SendResult sent, Message message) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("success", sent.isSuccess());
        result.put("offset", sent.getOffset());
        result.put("partition", sent.getPartition() == null ? null : sent.getPartition().toString());
        result.put("error", sent.getErrorMessage());
        return result;
    }

    private XAMessageProducer xaProducer(Map<String, Object> request) throws Exception {
        String topic = (String) request.get("topic");
        String key = request.get("zk") + "|" + topic;
        XAMessageProducer producer = xaProducers.get(key);
        if (producer == null) {
            producer = factory(request).createXAProducer();
            producer.publish(topic);
            xaProducers.put(key, producer);
        }
        return producer;
    }

    /** Sends the messages in one XA transaction and goes as far with it as `until` says. */
    @SuppressWarnings("unchecked")
    private Object xa(Map<String, Object> request) throws Exception {
        XAMessageProducer producer = xaProducer(request);
        XAResource resource = producer.getXAResource();
        Xid xid = new TestXid(number(request, "xid"));
        String until = (String) request.get("until");
        if (!until.startsWith("only")) {
            resource.start(xid, XAResource.TMNOFLAGS);
            for (Map<String, Object> each : (List<Map<String, Object>>) request.get("messages")) {
                SendResult sent = producer.sendMessage(message((String) request.get("topic"), each));
                if (!sent.isSuccess()) {
                    throw new IllegalStateException(sent.getErrorMessage());
                }
            }
            resource.end(xid, XAResource.TMSUCCESS);
        }
        switch (until) {
            case "prepare":
                return resource.prepare(xid);
            case "commit":
                int vote = resource.prepare(xid);
                resource.commit(xid, false);
                return vote;
            case "onePhase":
                resource.commit(xid, true);
                return null;
            case "rollback":
                resource.prepare(xid);
                resource.rollback(xid);
                return null;
            case "onlyCommit":
                resource.commit(xid, false);
                return null;
            default:
                throw new IllegalArgumentException(until);
        }
    }

    private Object recover(Map<String, Object> request) throws Exception {
        XAMessageProducer producer = xaProducer(request);
        List<Object> found = new ArrayList<>();
        for (Xid xid : producer.getXAResource().recover(XAResource.TMSTARTRSCAN)) {
            found.add(new String(xid.getGlobalTransactionId(), StandardCharsets.UTF_8));
        }
        return found;
    }

    private Object browse(Map<String, Object> request) throws Exception {
        TopicBrowser browser = factory(request).createTopicBrowser((String) request.get("topic"));
        List<Object> found = new ArrayList<>();
        for (Iterator<Message> it = browser.iterator(); it.hasNext(); ) {
            found.add(fields(it.next()));
        }
        browser.shutdown();
        return found;
    }

    private void startBroker(Map<String, Object> request) {
        MetaConfig config = new MetaConfig();
        config.loadFromFile((String) request.get("ini"));
        config.verify();
        MetaMorphosisBroker broker = new MetaMorphosisBroker(config);
        broker.start();
        brokers.put((String) request.get("name"), broker);
    }

    /** Opens a configuration's partitions and closes them again: how long the first of it took, and what was found. */
    private static Map<String, Object> open(Map<String, Object> request) throws Exception {
        Field fastBoot = FileMessageSet.class.getDeclaredField("fastBoot");
        fastBoot.setAccessible(true);
        fastBoot.setBoolean(null, (Boolean) request.get("fastBoot"));
        MetaConfig config = new MetaConfig();
        config.loadFromFile((String) request.get("ini"));
        long began = System.nanoTime();
        MessageStoreManager manager = new MessageStoreManager(config, null);
        manager.init();
        Map<String, Object> done = new LinkedHashMap<>();
        done.put("seconds", (System.nanoTime() - began) / 1e9);
        done.put("messages", manager.getTotalMessagesCount());
        manager.dispose();
        fastBoot.setBoolean(null, false);
        return done;
    }

    private void close() throws Exception {
        for (Consumer consumer : consumers.values()) {
            consumer.consumer.shutdown();
        }
        for (String zk : new ArrayList<>(factories.keySet())) {
            disconnect(zk);
        }
        for (MetaMorphosisBroker broker : brokers.values()) {
            broker.stop();
        }
    }

    private static final class Consumer {
        final MessageConsumer consumer;
        private final LinkedBlockingQueue<Message> queue = new LinkedBlockingQueue<>();

        Consumer(XAMetaMessageSessionFactory factory, Map<String, Object> request) throws Exception {
            ConsumerConfig config = new ConsumerConfig((String) request.get("group"));
            config.setFetchRunnerCount(2);
            config.setMaxDelayFetchTimeInMills(100);
            config.setCommitOffsetPeriodInMills(200);
            consumer = factory.createConsumer(config);
            consumer.subscribe((String) request.get("topic"), 1024 * 1024, new MessageListener() {
                @Override
                public void recieveMessages(Message message) {
                    queue.add(message);
                }

                @Override
                public Executor getExecutor() {
                    return null;
                }
            });
            consumer.completeSubscribe();
        }

        Object take(int count, int timeoutMs) throws InterruptedException {
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
            List<Object> found = new ArrayList<>();
            while (found.size() < count) {
                Message message = queue.poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
                if (message == null) {
                    break;
                }
                found.add(fields(message));
            }
            return found;
        }
    }

    private static final class TestXid implements Xid {
        private final byte[] number;

        TestXid(int number) {
            this.number = String.valueOf(number).getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public int getFormatId() {
            return 100;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return number;
        }

        @Override
        public byte[] getBranchQualifier() {
            return number;
        }
    }
}
