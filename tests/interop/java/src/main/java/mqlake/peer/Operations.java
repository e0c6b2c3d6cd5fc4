package mqlake.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * The operations of a "put" request, each answered by one line.
 *
 * <pre>
 * put    topic queueId body|size+seed tags keys uniqKey delayLevel waitStoreMsgOk properties{} flag sysFlag
 *        bornTimestamp bornHost storeHost reconsumeTimes preparedTransactionOffset
 * batch  as put, but messages[] (each: body|size+seed flag tags keys uniqKey properties{}) in place of a body;
 *        or a raw encoded body. "inner": stored as one record (the topic must be of queue.type BatchCQ)
 * tick   waits until all is dispatched and the clock shows a later millisecond
 * </pre>
 *
 * body is base64, a host is [ip, port]; a field that is absent is as in a new message.
 */
final class Operations {
    private static final JSONArray BORN_HOST = JSONArray.of("127.0.0.1", 50000);
    private static final JSONArray STORE_HOST = JSONArray.of("127.0.0.1", 10911);

    private final PeerStore peer;

    Operations(PeerStore peer) {
        this.peer = peer;
    }

    JSONObject run(JSONObject op) throws Exception {
        try {
            return perform(op);
        } catch (RuntimeException thrown) {
            // Some puts are refused by an exception.
            return JSONObject.of("status", "EXCEPTION", "exception", thrown.toString());
        }
    }

    private JSONObject perform(JSONObject op) throws Exception {
        switch (op.getString("op")) {
            case "put":
                return result(peer.store.putMessage(single(op)));
            case "batch":
                return op.getBooleanValue("inner")
                    ? result(peer.store.putMessage(innerBatch(op)))
                    : result(peer.store.putMessages(batch(op)));
            case "tick":
                return tick();
            default:
                throw new IllegalArgumentException("unknown operation " + op.getString("op"));
        }
    }

    private JSONObject tick() throws InterruptedException {
        peer.settle();
        long begin = System.currentTimeMillis();
        while (System.currentTimeMillis() == begin) {
            Thread.onSpinWait();
        }
        return JSONObject.of("status", "TICK", "now", System.currentTimeMillis());
    }

    static MessageExtBrokerInner single(JSONObject op) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, op);
        message.setBody(body(op));
        return message;
    }

    static MessageExtBatch batch(JSONObject op) throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, op);
        batch.setBody(op.containsKey("messages") ? encoded(op) : body(op));
        return batch;
    }

    private static MessageExtBrokerInner innerBatch(JSONObject op) throws Exception {
        MessageExtBatch batch = batch(op);
        batch.setInnerBatch(true);
        batch.setSysFlag(
            batch.getSysFlag() | MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG);
        int count = MessageDecoder.countInnerMsgNum(ByteBuffer.wrap(batch.getBody()));
        MessageAccessor.putProperty(batch, MessageConst.PROPERTY_INNER_NUM, String.valueOf(count));
        batch.setPropertiesString(MessageDecoder.messageProperties2String(batch.getProperties()));
        return batch;
    }

    private static byte[] encoded(JSONObject op) throws NoSuchAlgorithmException {
        List<Message> messages = new ArrayList<>();
        JSONArray items = op.getJSONArray("messages");
        for (int i = 0; i < items.size(); i++) {
            JSONObject item = items.getJSONObject(i);
            Message message = new Message(op.getString("topic"), body(item));
            message.setFlag(item.getIntValue("flag"));
            MessageAccessor.setProperties(message, properties(item));
            messages.add(message);
        }
        return MessageDecoder.encodeMessages(messages);
    }

    private static void fill(MessageExtBrokerInner message, JSONObject op) throws UnknownHostException {
        message.setTopic(op.getString("topic"));
        message.setQueueId(op.getIntValue("queueId"));
        message.setFlag(op.getIntValue("flag"));
        message.setSysFlag(op.getIntValue("sysFlag"));
        message.setBornTimestamp(
            op.containsKey("bornTimestamp") ? op.getLongValue("bornTimestamp") : System.currentTimeMillis());
        message.setBornHost(host(op, "bornHost", BORN_HOST));
        message.setStoreHost(host(op, "storeHost", STORE_HOST));
        message.setReconsumeTimes(op.getIntValue("reconsumeTimes"));
        message.setPreparedTransactionOffset(op.getLongValue("preparedTransactionOffset"));
        MessageAccessor.setProperties(message, properties(op));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
    }

    private static InetSocketAddress host(JSONObject op, String key, JSONArray absent) throws UnknownHostException {
        JSONArray host = op.containsKey(key) ? op.getJSONArray(key) : absent;
        return new InetSocketAddress(InetAddress.getByName(host.getString(0)), host.getIntValue(1));
    }

    private static Map<String, String> properties(JSONObject op) {
        Map<String, String> properties = new HashMap<>();
        Optional.ofNullable(op.getJSONObject("properties"))
            .ifPresent(given -> given.forEach((key, value) -> properties.put(key, (String) value)));
        put(properties, MessageConst.PROPERTY_TAGS, op.get("tags"));
        put(properties, MessageConst.PROPERTY_KEYS, op.get("keys"));
        put(properties, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, op.get("uniqKey"));
        put(properties, MessageConst.PROPERTY_DELAY_TIME_LEVEL, op.get("delayLevel"));
        put(properties, MessageConst.PROPERTY_WAIT_STORE_MSG_OK, op.get("waitStoreMsgOk"));
        return properties;
    }

    private static void put(Map<String, String> properties, String key, Object value) {
        if (value != null) {
            properties.put(key, String.valueOf(value));
        }
    }

    /** The body given, or "size" bytes made from "seed": sha256("seed:0") sha256("seed:1") ... cut to size. */
    private static byte[] body(JSONObject op) throws NoSuchAlgorithmException {
        if (op.containsKey("body")) {
            return Base64.getDecoder().decode(op.getString("body"));
        }
        if (!op.containsKey("size")) {
            return null;
        }
        byte[] body = new byte[op.getIntValue("size")];
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int at = 0, block = 0; at < body.length; block++) {
            byte[] piece = digest.digest((op.get("seed") + ":" + block).getBytes());
            int length = Math.min(piece.length, body.length - at);
            System.arraycopy(piece, 0, body, at, length);
            at += length;
        }
        return body;
    }

    private static JSONObject result(PutMessageResult put) {
        JSONObject line = JSONObject.of("status", put.getPutMessageStatus().name());
        AppendMessageResult append = put.getAppendMessageResult();
        if (append != null) {
            line.put("appendStatus", append.getStatus().name());
            line.put("wroteOffset", append.getWroteOffset());
            line.put("wroteBytes", append.getWroteBytes());
            line.put("logicsOffset", append.getLogicsOffset());
            line.put("msgNum", append.getMsgNum());
            line.put("msgId", append.isOk() ? append.getMsgId() : null);
            line.put("storeTimestamp", append.getStoreTimestamp());
        }
        return line;
    }
}
