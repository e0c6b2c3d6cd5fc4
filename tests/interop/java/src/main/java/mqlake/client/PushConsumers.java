package mqlake.client;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import mqlake.lines.Patience;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * DefaultMQPushConsumer.
 *
 * <pre>
 * push.start    name, namesrv, group, topic; tags or sql; orderly, broadcasting; from (FIRST, LAST);
 *               pop (asks the broker for its queues, and pops if it says so), invisibleTime;
 *               failures (how often each message fails before it is consumed), maxReconsumeTimes;
 *               tls; accessKey and secretKey to sign with; reply (each message is answered with its body in upper case)
 * push.take     name, count, timeoutMillis   messages: all so far, as soon as there are so many or the time is over
 * push.queues   name, topic                  queues: ids of those that it has
 * push.stop     name
 * </pre>
 *
 * A message that comes again after a failure is listed each time. What failed comes again after a second.
 */
final class PushConsumers implements RequestLoop.Service {
    private static final class Client {
        DefaultMQPushConsumer consumer;
        DefaultMQProducer replier;
        int failures;
        final List<JSONObject> received = new ArrayList<>();

        /** Whether all of them are consumed with this. */
        boolean receive(List<MessageExt> messages) throws Exception {
            boolean consumed = true;
            for (MessageExt message : messages) {
                if (replier != null) {
                    String upper = new String(message.getBody(), StandardCharsets.UTF_8).toUpperCase();
                    replier.send(MessageUtil.createReplyMessage(message, upper.getBytes(StandardCharsets.UTF_8)));
                }
                consumed &= message.getReconsumeTimes() >= failures;
                synchronized (received) {
                    received.add(Messages.received(message));
                    received.notifyAll();
                }
            }
            return consumed;
        }
    }

    private final Map<String, Client> clients = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        if ("start".equals(what)) {
            clients.put(name, start(name, request));
            return new JSONObject();
        }
        Client client = clients.get(name);
        switch (what) {
            case "take":
                return take(client, request);
            case "queues":
                return JSONObject.of("queues", client.consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                    .getProcessQueueTable().keySet().stream()
                    .filter(queue -> queue.getTopic().equals(request.getString("topic")))
                    .map(queue -> queue.getQueueId()).sorted().toList());
            case "stop":
                clients.remove(name);
                if (client.replier != null) {
                    Main.later(client.replier::shutdown);
                }
                return Main.later(client.consumer::shutdown);
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static JSONObject take(Client client, JSONObject request) throws InterruptedException {
        int count = request.getIntValue("count");
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.getLongValue("timeoutMillis"));
        synchronized (client.received) {
            while (client.received.size() < count) {
                long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                if (left <= 0) {
                    break;
                }
                client.received.wait(left);
            }
            return JSONObject.of("messages", new ArrayList<>(client.received));
        }
    }

    private static Client start(String name, JSONObject request) throws Exception {
        Client client = new Client();
        client.failures = request.getIntValue("failures");
        if (request.getBooleanValue("reply")) {
            client.replier = Producers.start(name + "-replier", request);
        }
        DefaultMQPushConsumer consumer = client.consumer = new DefaultMQPushConsumer(
            request.getString("group"), Main.signature(request), new AllocateMessageQueueAveragely());
        consumer.setUseTLS(request.getBooleanValue("tls"));
        consumer.setNamesrvAddr(request.getString("namesrv"));
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(1000);
        // A heartbeat that a restart swallows is otherwise sent again after 30 seconds.
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        // Else the last offset that it commits may be of before what it has just consumed, for ever.
        consumer.setAwaitTerminationMillisWhenShutdown(Patience.MILLIS);
        Patience.give(consumer);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf("CONSUME_FROM_" + request.getOrDefault("from", "FIRST") + "_OFFSET"));
        consumer.setMaxReconsumeTimes(request.getIntValue("maxReconsumeTimes", -1));
        consumer.setSuspendCurrentQueueTimeMillis(50);
        boolean pop = request.getBooleanValue("pop");
        if (pop) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(request.getLongValue("invisibleTime", 60_000));
        }
        if (request.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (request.containsKey("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("sql")));
        } else {
            consumer.subscribe(request.getString("topic"), (String) request.getOrDefault("tags", "*"));
        }
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                try {
                    return client.receive(messages) ? ConsumeOrderlyStatus.SUCCESS
                        : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                // 1 is a second for those that pull, and 30 for those that pop; 0 is 10 for these
                context.setDelayLevelWhenNextConsume(pop ? 0 : 1);
                try {
                    return client.receive(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                        : ConsumeConcurrentlyStatus.RECONSUME_LATER;
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            });
        }
        consumer.start();
        return client;
    }
}
