package mqlake.client;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import mqlake.lines.Patience;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The load program of the broker benches: RocketMQ's own producer and pull consumer, as fast as they go. One client of
 * a name is kept for all its rounds.
 *
 * <pre>
 * bench.open    name, namesrv
 * bench.send    name, topic, size, count; how: sync (threads), async (inFlight), batch (threads, batch),
 *               transaction (threads): each is committed at once
 * bench.drain   name, topic             every queue from its beginning to its end, a thread each, 32 messages a pull
 * bench.close   name
 * </pre>
 *
 * A round answers count, bytes (of bodies), failed, seconds, and the latencies p50, p99, p999 of one request in µs.
 */
final class Bench implements RequestLoop.Service {
    private static final class Client {
        DefaultMQProducer producer;
        TransactionMQProducer transactions;
        DefaultMQPullConsumer consumer;
    }

    /** What one thread, or all of them, did. */
    private static final class Done {
        long count;
        long bytes;
        long failed;
        long[] nanos = new long[1024];
        int requests;

        void request(long began) {
            if (requests == nanos.length) {
                nanos = Arrays.copyOf(nanos, 2 * requests);
            }
            nanos[requests++] = System.nanoTime() - began;
        }

        Done add(Done other) {
            count += other.count;
            bytes += other.bytes;
            failed += other.failed;
            long[] all = Arrays.copyOf(nanos, requests + other.requests);
            System.arraycopy(other.nanos, 0, all, requests, other.requests);
            nanos = all;
            requests = all.length;
            return this;
        }

        double micros(double quantile) {
            return requests == 0 ? 0 : nanos[Math.min(requests - 1, (int) (requests * quantile))] / 1e3;
        }
    }

    private final Map<String, Client> clients = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        if ("open".equals(what)) {
            clients.put(name, open(name, request));
            return new JSONObject();
        }
        Client client = clients.get(name);
        switch (what) {
            case "send":
                return round(sends(client, request));
            case "drain":
                return round(drains(client.consumer, request.getString("topic")));
            case "close":
                clients.remove(name);
                client.producer.shutdown();
                client.transactions.shutdown();
                client.consumer.shutdown();
                return new JSONObject();
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static Client open(String name, JSONObject request) throws Exception {
        Client client = new Client();
        client.producer = Producers.start(name, request);
        client.transactions = transactions(name, request);
        client.consumer = new DefaultMQPullConsumer("GID_" + name);
        client.consumer.setNamesrvAddr(request.getString("namesrv"));
        client.consumer.setInstanceName(name + "-consumer");
        client.consumer.start();
        return client;
    }

    private static TransactionMQProducer transactions(String name, JSONObject request) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("GID_" + name + "_transactions");
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(name + "-transactions");
        producer.setSendMsgTimeout(Patience.MILLIS);
        Patience.give(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        return producer;
    }

    private static JSONObject round(List<Callable<Done>> tasks) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(tasks.size());
        try {
            long began = System.nanoTime();
            Done all = new Done();
            List<Done> each = new ArrayList<>();
            for (Future<Done> future : threads.invokeAll(tasks)) {
                each.add(future.get());
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            each.forEach(all::add);
            Arrays.sort(all.nanos, 0, all.requests);
            return JSONObject.of("count", all.count, "bytes", all.bytes, "failed", all.failed, "seconds", seconds)
                .fluentPut("p50", all.micros(0.5)).fluentPut("p99", all.micros(0.99)).fluentPut("p999", all.micros(0.999));
        } finally {
            threads.shutdown();
        }
    }

    private static List<Callable<Done>> sends(Client client, JSONObject request) {
        DefaultMQProducer producer = client.producer;
        String how = request.getString("how");
        String topic = request.getString("topic");
        int threads = request.getIntValue("threads", 1);
        int count = request.getIntValue("count") / threads;
        byte[] body = new byte[request.getIntValue("size")];
        Arrays.fill(body, (byte) 'm');
        List<Callable<Done>> tasks = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            tasks.add(switch (how) {
                case "sync" -> () -> sync(producer, topic, body, count);
                case "async" -> () -> async(producer, topic, body, count, request.getIntValue("inFlight"));
                case "batch" -> () -> batch(producer, topic, body, count, request.getIntValue("batch"));
                case "transaction" -> () -> transaction(client.transactions, topic, body, count);
                default -> throw new IllegalArgumentException(how);
            });
        }
        return tasks;
    }

    private static Message message(String topic, byte[] body) {
        return new Message(topic, "TagA", body);
    }

    private static Done sync(DefaultMQProducer producer, String topic, byte[] body, int count) throws Exception {
        Done done = new Done();
        for (int i = 0; i < count; i++) {
            long began = System.nanoTime();
            SendResult result = producer.send(message(topic, body));
            done.request(began);
            done.failed += result.getSendStatus() == SendStatus.SEND_OK ? 0 : 1;
        }
        done.count = count;
        done.bytes = (long) count * body.length;
        return done;
    }

    private static Done transaction(TransactionMQProducer producer, String topic, byte[] body, int count)
        throws Exception {
        Done done = new Done();
        for (int i = 0; i < count; i++) {
            long began = System.nanoTime();
            SendResult result = producer.sendMessageInTransaction(message(topic, body), null);
            done.request(began);
            done.failed += result.getSendStatus() == SendStatus.SEND_OK ? 0 : 1;
        }
        done.count = count;
        done.bytes = (long) count * body.length;
        return done;
    }

    private static Done batch(DefaultMQProducer producer, String topic, byte[] body, int count, int size)
        throws Exception {
        Done done = new Done();
        while (done.count + size <= count) {
            List<Message> messages = new ArrayList<>(size);
            for (int i = 0; i < size; i++) {
                messages.add(message(topic, body));
            }
            long began = System.nanoTime();
            SendResult result = producer.send(messages);
            done.request(began);
            done.failed += result.getSendStatus() == SendStatus.SEND_OK ? 0 : size;
            done.count += size;
        }
        done.bytes = done.count * body.length;
        return done;
    }

    private static Done async(DefaultMQProducer producer, String topic, byte[] body, int count, int inFlight)
        throws Exception {
        Done done = new Done();
        Semaphore window = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            window.acquire();
            long began = System.nanoTime();
            producer.send(message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    synchronized (done) {
                        done.request(began);
                    }
                    window.release();
                }

                @Override
                public void onException(Throwable failure) {
                    failed.incrementAndGet();
                    window.release();
                }
            });
        }
        window.acquire(inFlight);
        done.count = count;
        done.failed = failed.get();
        done.bytes = (long) count * body.length;
        return done;
    }

    private static List<Callable<Done>> drains(DefaultMQPullConsumer consumer, String topic) throws Exception {
        List<Callable<Done>> tasks = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            tasks.add(() -> drain(consumer, queue));
        }
        return tasks;
    }

    private static Done drain(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        Done done = new Done();
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        while (offset < end) {
            long began = System.nanoTime();
            PullResult result = consumer.pull(queue, "*", offset, 32);
            done.request(began);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + offset + ": " + result);
            }
            for (MessageExt message : result.getMsgFoundList()) {
                done.bytes += message.getBody().length;
            }
            done.count += result.getMsgFoundList().size();
            offset = result.getNextBeginOffset();
        }
        return done;
    }
}
