package mqlake.client;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import mqlake.lines.Patience;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * DefaultMQProducer.
 *
 * <pre>
 * producer.start    name, namesrv; timeoutMillis, queues (of a topic it makes), compressFrom (bytes), retries (0),
 *                   tls; accessKey and secretKey to sign with; apiTimeoutMillis (60,000) of routes and heartbeats
 * producer.send     name, topic, how, messages           results: one for each send, see {@link Messages}
 *     how           sync, async, oneway                  the producer chooses the queue
 *                   queue                                the messages' queueId
 *                   ordered                              the messages' shard chooses, by a MessageQueueSelector
 *                   batch                                all in one, queueId if there is one
 * producer.request  name, topic, message, timeoutMillis  the reply
 * producer.recall   name, topic, handle                  msgId
 * producer.queues   name, topic                          queues: ids that it may send to, once there is the topic
 * producer.stop     name
 * </pre>
 */
final class Producers implements RequestLoop.Service {
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        if ("start".equals(what)) {
            producers.put(name, start(name, request));
            return new JSONObject();
        }
        DefaultMQProducer producer = producers.get(name);
        String topic = request.getString("topic");
        switch (what) {
            case "send":
                return JSONObject.of("results", send(producer, request.getString("how"), request));
            case "request":
                return Messages.received(request(
                    producer, Messages.of(topic, request.getJSONObject("message")), request.getLongValue("timeoutMillis")));
            case "recall":
                return JSONObject.of("msgId", producer.recallMessage(topic, request.getString("handle")));
            case "queues":
                return JSONObject.of("queues",
                    Patience.find(() -> producer.fetchPublishMessageQueues(topic)).stream()
                        .map(MessageQueue::getQueueId).sorted().toList());
            case "stop":
                return Main.later(producers.remove(name)::shutdown);
            default:
                throw new IllegalArgumentException(what);
        }
    }

    static DefaultMQProducer start(String name, JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("GID_" + name, Main.signature(request));
        producer.setUseTLS(request.getBooleanValue("tls"));
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(request.getIntValue("timeoutMillis", Patience.MILLIS));
        producer.setDefaultTopicQueueNums(request.getIntValue("queues", 4));
        producer.setCompressMsgBodyOverHowmuch(request.getIntValue("compressFrom", 4096));
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        Patience.give(producer);
        if (request.containsKey("apiTimeoutMillis")) {
            producer.setMqClientApiTimeout(request.getIntValue("apiTimeoutMillis"));
        }
        // Unless told otherwise, what failed shows as a failure, and nothing is stored twice.
        producer.setRetryTimesWhenSendFailed(request.getIntValue("retries"));
        producer.setRetryTimesWhenSendAsyncFailed(request.getIntValue("retries"));
        producer.start();
        return producer;
    }

    private static JSONArray send(DefaultMQProducer producer, String how, JSONObject request) throws Exception {
        JSONArray given = request.getJSONArray("messages");
        List<Message> messages = Messages.listOf(request);
        JSONArray results = new JSONArray();
        if ("batch".equals(how)) {
            Integer queueId = request.getInteger("queueId");
            results.add(Messages.sent(queueId == null ? producer.send(messages)
                : producer.send(messages, queue(producer, request.getString("topic"), queueId))));
            return results;
        }
        List<CompletableFuture<SendResult>> underWay = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            JSONObject each = given.getJSONObject(i);
            switch (how) {
                case "sync" -> results.add(tried(() -> producer.send(message)));
                case "oneway" -> producer.sendOneway(message);
                case "queue" -> results.add(tried(() ->
                    producer.send(message, queue(producer, message.getTopic(), each.getIntValue("queueId")))));
                case "ordered" -> results.add(tried(() -> producer.send(
                    message, (queues, sent, shard) -> queues.get((int) shard % queues.size()), each.getInteger("shard"))));
                case "async" -> {
                    CompletableFuture<SendResult> future = new CompletableFuture<>();
                    underWay.add(future);
                    producer.send(message, completing(future));
                }
                default -> throw new IllegalArgumentException(how);
            }
        }
        for (CompletableFuture<SendResult> future : underWay) {
            results.add(tried(() -> future.get(2 * Patience.MILLIS, TimeUnit.MILLISECONDS)));
        }
        return results;
    }

    /**
     * The waiting request() of 5.3.3 gives up when the send is acknowledged before the reply is there; the other one then
     * calls back without a reply, and again with it.
     */
    private static Message request(DefaultMQProducer producer, Message message, long timeoutMillis) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message received) {
                if (received != null) {
                    reply.complete(received);
                }
            }

            @Override
            public void onException(Throwable failure) {
                reply.completeExceptionally(failure);
            }
        }, timeoutMillis);
        return reply.get(timeoutMillis + 5000, TimeUnit.MILLISECONDS);
    }

    private static SendCallback completing(CompletableFuture<SendResult> future) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                future.completeExceptionally(failure);
            }
        };
    }

    private interface Send {
        SendResult send() throws Exception;
    }

    private static JSONObject tried(Send send) {
        try {
            return Messages.sent(send.send());
        } catch (Exception failure) {
            return JSONObject.of("error", failure.toString());
        }
    }

    static MessageQueue queue(DefaultMQProducer producer, String topic, int queueId) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            if (queue.getQueueId() == queueId) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + queueId + " in " + topic);
    }
}
