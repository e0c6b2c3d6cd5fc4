import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java client for gRPC through everything it can do with a broker: java Peer HOST:PORT PREFIX. */
public class Peer {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final long PATIENCE_MS = 90_000;
    static ClientConfiguration configuration;
    static String prefix;

    static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(prefix + topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static String quoted(String text) {
        return text == null ? "null" : '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    static String strings(Iterable<String> texts) {
        List<String> all = new ArrayList<>();
        texts.forEach(text -> all.add(quoted(text)));
        return "[" + String.join(",", all) + "]";
    }

    static String described(MessageView view) {
        return "{\"body\":" + quoted(body(view)) + ",\"id\":" + quoted(view.getMessageId().toString())
            + ",\"tag\":" + quoted(view.getTag().orElse(null)) + ",\"keys\":" + strings(view.getKeys())
            + ",\"p\":" + quoted(view.getProperties().get("p")) + ",\"attempt\":" + view.getDeliveryAttempt() + "}";
    }

    static class Listener {
        final Map<String, Integer> fails;
        final List<String> seen = Collections.synchronizedList(new ArrayList<>());
        final List<String> seenBodies = Collections.synchronizedList(new ArrayList<>());
        final List<String> consumed = Collections.synchronizedList(new ArrayList<>());
        final CountDownLatch left;

        Listener(int count, Map<String, Integer> fails) {
            this.left = new CountDownLatch(count);
            this.fails = new HashMap<>(fails);
        }

        synchronized ConsumeResult consume(MessageView view) {
            String body = body(view);
            seen.add(described(view));
            seenBodies.add(body);
            if (fails.merge(body, -1, Integer::sum) >= 0) {
                return ConsumeResult.FAILURE;
            }
            consumed.add(body);
            left.countDown();
            return ConsumeResult.SUCCESS;
        }
    }

    static PushConsumer push(String group, String topic, Listener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(prefix + group)
            .setSubscriptionExpressions(Map.of(prefix + topic, FilterExpression.SUB_ALL))
            .setMessageListener(listener::consume).build();
    }

    static Listener pushed(String group, String topic, int count, Map<String, Integer> fails) throws Exception {
        Listener listener = new Listener(count, fails);
        try (PushConsumer consumer = push(group, topic, listener)) {
            if (!listener.left.await(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("received only " + listener.seen);
            }
            Thread.sleep(300);  // the last acknowledgement is on its way
        }
        return listener;
    }

    static SimpleConsumer simple(String group, String topic, String expression) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(prefix + group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(
                Map.of(prefix + topic, new FilterExpression(expression, FilterExpressionType.TAG)))
            .build();
    }

    static List<MessageView> receive(SimpleConsumer consumer, int count) throws Exception {
        List<MessageView> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(20))) {
                found.add(view);
                consumer.ack(view);
            }
        }
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        prefix = arguments[1];
        List<String> result = new ArrayList<>();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(prefix + "N", prefix + "F", prefix + "D", prefix + "X")
            .setTransactionChecker(view -> TransactionResolution.COMMIT).build();
        normal(producer, result);
        result.add("\"push\":[" + String.join(",", pushed("gp", "N", 10, Map.of("n-0", 1)).seen) + "]");
        fifo(producer, result);
        delayed(producer, result);
        transactions(producer, result);
        dead(producer, result);
        producer.close();
        System.out.println("{" + String.join(",", result) + "}");
        System.exit(0);
    }

    static void normal(Producer producer, List<String> result) throws Exception {
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            Message one = message("N", "n-" + number).setTag(number % 2 == 0 ? "a" : "b").setKeys("k-" + number)
                .addProperty("p", "" + number).build();
            sent.add(producer.send(one).getMessageId().toString());
        }
        result.add("\"sent\":" + strings(sent));
        SimpleConsumer consumer = simple("gs", "N", "a");
        List<String> received = new ArrayList<>();
        String changed = null;
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (received.size() < 5 && System.currentTimeMillis() < deadline) {
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(20))) {
                received.add(described(view));
                if (changed == null) {
                    changed = body(view);
                    consumer.changeInvisibleDuration(view, Duration.ofSeconds(1));
                } else {
                    consumer.ack(view);
                }
            }
        }
        result.add("\"simple\":[" + String.join(",", received) + "]");
        result.add("\"changed\":" + quoted(changed));
        List<String> again = receive(consumer, 1).stream().map(Peer::described).collect(Collectors.toList());
        result.add("\"again\":[" + String.join(",", again) + "]");
        consumer.close();
    }

    static void fifo(Producer producer, List<String> result) throws Exception {
        for (int number = 0; number < 6; number++) {
            producer.send(message("F", "f-" + number).setMessageGroup("g1").build());
        }
        result.add("\"fifo\":" + strings(pushed("go", "F", 6, Map.of("f-2", 1)).consumed));
    }

    static void delayed(Producer producer, List<String> result) throws Exception {
        long due = System.currentTimeMillis() + 4000;
        SendReceipt recalled = producer.send(message("D", "recalled").setDeliveryTimestamp(due).build());
        producer.send(message("D", "kept").setDeliveryTimestamp(due).build());
        producer.recallMessage(prefix + "D", recalled.getRecallHandle());
        SimpleConsumer consumer = simple("gd", "D", "*");
        List<String> bodies = receive(consumer, 1).stream().map(Peer::body).collect(Collectors.toList());
        result.add("\"delayed\":" + strings(bodies));
        result.add("\"early\":" + (System.currentTimeMillis() < due));
        consumer.close();
    }

    static void transactions(Producer producer, List<String> result) throws Exception {
        for (String body : List.of("commit", "rollback", "orphan")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("X", body).build(), transaction);
            if (body.equals("commit")) {
                transaction.commit();
            } else if (body.equals("rollback")) {
                transaction.rollback();
            }
        }
        SimpleConsumer consumer = simple("gx", "X", "*");
        result.add("\"transactions\":"
            + strings(receive(consumer, 2).stream().map(Peer::body).sorted().collect(Collectors.toList())));
        consumer.close();
    }

    static void dead(Producer producer, List<String> result) throws Exception {
        producer.send(message("F", "dead").setMessageGroup("g2").build());
        Listener listener = new Listener(6, Map.of("dead", 99));
        PushConsumer consumer = push("gq", "F", listener);
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (Collections.frequency(listener.seenBodies, "dead") < 2 && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        Thread.sleep(500);  // the client forwards it after its last attempt, and says nothing about it
        result.add("\"dead\":" + Collections.frequency(listener.seenBodies, "dead"));
        consumer.close();
    }
}
