package mqlake.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as JSON lines. */
final class Lines {
    /** Where the properties' text is found beside the parsed properties. */
    private static final String PROPERTIES_STRING = "propertiesString";

    private Lines() {
    }

    /** The record at the buffer's position (which moves past it), or null when it is none, its body CRC checked. */
    static JSONObject record(ByteBuffer buffer) {
        int begin = buffer.position();
        MessageExt message = MessageDecoder.decode(buffer, true, false, false, true, true);
        if (message == null) {
            return null;
        }
        JSONObject line = of(message);
        line.put("magicCode", buffer.getInt(begin + 4));
        return line;
    }

    static JSONObject of(MessageExt message) {
        JSONObject line = new JSONObject();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("size", message.getStoreSize());
        line.put("msgId", message.getMsgId());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("bodyCrc", message.getBodyCRC());
        line.put("body", base64(message.getBody()));
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("bornHost", host(message.getBornHost()));
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("storeHost", host(message.getStoreHost()));
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        // A message without properties has no map at all.
        Map<String, String> given = message.getProperties() == null ? Map.of() : message.getProperties();
        JSONObject properties = new JSONObject(given);
        properties.remove(PROPERTIES_STRING);
        line.put("properties", properties);
        line.put(PROPERTIES_STRING, given.getOrDefault(PROPERTIES_STRING, ""));
        return line;
    }

    static String base64(byte[] bytes) {
        return bytes == null ? "" : Base64.getEncoder().encodeToString(bytes);
    }

    private static JSONArray host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return JSONArray.of(host.getAddress().getHostAddress(), host.getPort());
    }
}
