package mqlake.peer;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Look-ups, each answered by one line.
 *
 * <pre>
 * key       topic key max begin end               physical offsets of queryMessage, in its order
 * time      topic queueId timestamp boundary      queue offset (LOWER or UPPER)
 * get       topic queueId offset max subscription status, offsets and the physical offsets found
 * physical  offset                                the record there, as lookMessageByOffset gives it, or none
 * </pre>
 */
final class Queries {
    private final PeerStore peer;

    Queries(PeerStore peer) {
        this.peer = peer;
    }

    JSONObject ask(JSONObject query) throws Exception {
        String topic = query.getString("topic");
        switch (query.getString("kind")) {
            case "key":
                return key(query, topic);
            case "time":
                return JSONObject.of("offset", peer.store.getOffsetInQueueByTime(
                    topic, query.getIntValue("queueId"), query.getLongValue("timestamp"),
                    BoundaryType.valueOf(query.getString("boundary"))));
            case "get":
                return get(query, topic);
            case "physical": {
                MessageExt message = peer.store.lookMessageByOffset(query.getLongValue("offset"));
                return message == null ? new JSONObject() : JSONObject.of("message", Lines.of(message));
            }
            default:
                throw new IllegalArgumentException("unknown query " + query.getString("kind"));
        }
    }

    private JSONObject key(JSONObject query, String topic) {
        QueryMessageResult found = peer.store.queryMessage(
            topic, query.getString("key"), query.getIntValue("max", 64), query.getLongValue("begin", 0L),
            query.getLongValue("end", Long.MAX_VALUE));
        try {
            return JSONObject.of(
                "physicalOffsets", physicalOffsets(found.getMessageBufferList()),
                "indexLastUpdateTimestamp", found.getIndexLastUpdateTimestamp(),
                "indexLastUpdatePhyoffset", found.getIndexLastUpdatePhyoffset());
        } finally {
            found.release();
        }
    }

    private JSONObject get(JSONObject query, String topic) throws Exception {
        String subscription = query.getString("subscription");
        GetMessageResult got = peer.store.getMessage(
            "peer", topic, query.getIntValue("queueId"), query.getLongValue("offset"), query.getIntValue("max", 32),
            subscription == null
                ? null
                : new DefaultMessageFilter(FilterAPI.buildSubscriptionData(topic, subscription)));
        try {
            return JSONObject.of(
                "status", got.getStatus().name(),
                "nextBeginOffset", got.getNextBeginOffset(),
                "minOffset", got.getMinOffset(),
                "maxOffset", got.getMaxOffset(),
                "physicalOffsets", physicalOffsets(got.getMessageBufferList()));
        } finally {
            got.release();
        }
    }

    private static JSONArray physicalOffsets(List<ByteBuffer> records) {
        JSONArray offsets = new JSONArray();
        for (ByteBuffer record : records) {
            offsets.add(record.getLong(record.position() + 28));
        }
        return offsets;
    }
}
