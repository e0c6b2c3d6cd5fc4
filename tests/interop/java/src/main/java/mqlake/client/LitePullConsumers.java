package mqlake.client;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import mqlake.lines.Patience;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * DefaultLitePullConsumer.
 *
 * <pre>
 * pull.start      name, namesrv, group; topic to subscribe to, with tags or sql; else it is to assign
 * pull.assign     name, topic; queues (ids), default all; begin: a new group begins at the first message; a topic
 *                 that is not there is waited for
 * pull.queues     name, topic                            queues: ids
 * pull.seek       name, topic, queueId, offset
 * pull.poll       name, count, timeoutMillis             messages: as soon as there are so many or the time is over
 * pull.commit     name                                   what was polled
 * pull.committed  name, topic, queueId                   offset
 * pull.offset     name, topic, queueId, timestamp        offset
 * pull.stop       name
 * </pre>
 */
final class LitePullConsumers implements RequestLoop.Service {
    private final Map<String, DefaultLitePullConsumer> consumers = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        if ("start".equals(what)) {
            consumers.put(name, start(name, request));
            return new JSONObject();
        }
        DefaultLitePullConsumer consumer = consumers.get(name);
        String topic = request.getString("topic");
        switch (what) {
            case "queues":
                return JSONObject.of("queues",
                    consumer.fetchMessageQueues(topic).stream().map(MessageQueue::getQueueId).sorted().toList());
            case "assign": {
                List<Integer> wanted = request.getList("queues", Integer.class);
                Collection<MessageQueue> queues = Patience.find(() -> consumer.fetchMessageQueues(topic)).stream()
                    .filter(queue -> wanted == null || wanted.contains(queue.getQueueId())).toList();
                if (request.getBooleanValue("begin")) {
                    // not seekToBegin: a pull under way at that moment gives messages twice, or moves past some
                    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                }
                consumer.assign(queues);
                return new JSONObject();
            }
            case "seek":
                consumer.seek(queue(consumer, request), request.getLongValue("offset"));
                return new JSONObject();
            case "poll":
                return Messages.received(poll(consumer, request));
            case "commit":
                consumer.commit();
                return new JSONObject();
            case "committed":
                return JSONObject.of("offset", consumer.committed(queue(consumer, request)));
            case "offset":
                return JSONObject.of("offset",
                    consumer.offsetForTimestamp(queue(consumer, request), request.getLongValue("timestamp")));
            case "stop":
                return Main.later(consumers.remove(name)::shutdown);
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static DefaultLitePullConsumer start(String name, JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(request.getString("namesrv"));
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(1000);
        Patience.give(consumer);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (request.containsKey("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("sql")));
        } else if (request.containsKey("topic")) {
            consumer.subscribe(request.getString("topic"), (String) request.getOrDefault("tags", "*"));
        }
        consumer.start();
        return consumer;
    }

    private static MessageQueue queue(DefaultLitePullConsumer consumer, JSONObject request) throws Exception {
        return consumer.fetchMessageQueues(request.getString("topic")).stream()
            .filter(queue -> queue.getQueueId() == request.getIntValue("queueId")).findFirst().orElseThrow();
    }

    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, JSONObject request) {
        List<MessageExt> messages = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.getLongValue("timeoutMillis"));
        while (messages.size() < request.getIntValue("count") && System.nanoTime() < deadline) {
            messages.addAll(consumer.poll(100));
        }
        return messages;
    }
}
