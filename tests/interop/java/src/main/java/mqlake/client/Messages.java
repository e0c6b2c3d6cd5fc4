package mqlake.client;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages and what came of sending them, as JSON.
 *
 * <pre>
 * to send    body (base64), tags, keys, properties, delayLevel, deliverTimeMs, flag, waitStoreMsgOk
 * sent       status, msgId, offsetMsgId, brokerName, queueId, queueOffset, recallHandle      or  error
 * received   topic, body, tags, keys, properties, flag, msgId, brokerName, queueId, queueOffset, bornTimestamp,
 *            storeTimestamp, reconsumeTimes, and receivedAt in milliseconds
 * </pre>
 */
final class Messages {
    private Messages() {
    }

    static Message of(String topic, JSONObject given) {
        Message message = new Message(topic, Base64.getDecoder().decode(given.getString("body")));
        if (given.containsKey("tags")) {
            message.setTags(given.getString("tags"));
        }
        if (given.containsKey("keys")) {
            message.setKeys(given.getString("keys"));
        }
        if (given.containsKey("properties")) {
            given.getJSONObject("properties").forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        if (given.containsKey("delayLevel")) {
            message.setDelayTimeLevel(given.getIntValue("delayLevel"));
        }
        if (given.containsKey("deliverTimeMs")) {
            message.setDeliverTimeMs(given.getLongValue("deliverTimeMs"));
        }
        message.setFlag(given.getIntValue("flag"));
        message.setWaitStoreMsgOK(given.getBooleanValue("waitStoreMsgOk", true));
        return message;
    }

    static List<Message> listOf(JSONObject request) {
        List<Message> messages = new ArrayList<>();
        for (Object each : request.getJSONArray("messages")) {
            messages.add(of(request.getString("topic"), (JSONObject) each));
        }
        return messages;
    }

    static JSONObject sent(SendResult result) {
        return JSONObject.of(
            "status", result.getSendStatus().name(),
            "msgId", result.getMsgId(),
            "offsetMsgId", result.getOffsetMsgId(),
            "brokerName", result.getMessageQueue().getBrokerName(),
            "queueId", result.getMessageQueue().getQueueId())
            .fluentPut("queueOffset", result.getQueueOffset())
            .fluentPut("recallHandle", result.getRecallHandle());
    }

    static JSONObject received(Message message) {
        JSONObject json = JSONObject.of(
            "topic", message.getTopic(),
            "body", Base64.getEncoder().encodeToString(message.getBody()),
            "tags", message.getTags(),
            "keys", message.getKeys(),
            "properties", message.getProperties())
            .fluentPut("flag", message.getFlag())
            .fluentPut("receivedAt", System.currentTimeMillis());
        if (message instanceof MessageExt) {
            MessageExt ext = (MessageExt) message;
            json.fluentPut("msgId", ext.getMsgId())
                .fluentPut("brokerName", ext.getBrokerName())
                .fluentPut("queueId", ext.getQueueId())
                .fluentPut("queueOffset", ext.getQueueOffset())
                .fluentPut("bornTimestamp", ext.getBornTimestamp())
                .fluentPut("storeTimestamp", ext.getStoreTimestamp())
                .fluentPut("reconsumeTimes", ext.getReconsumeTimes());
        }
        return json;
    }

    static JSONObject received(List<? extends Message> messages) {
        JSONArray all = new JSONArray();
        messages.forEach(message -> all.add(received(message)));
        return JSONObject.of("messages", all);
    }
}
