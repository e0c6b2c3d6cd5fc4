package mqlake.peer;

import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.GetMessageResult;

/**
 * Gets by queue offset, queue after queue, from the beginning again at the end.
 *
 * <pre>
 * open   root, config{}, topic, queues, page (messages a get), decode: each message decoded, as a consumer does;
 *        otherwise its bytes are read
 * round  count (messages) → count, bytes, seconds, cpuSeconds
 * </pre>
 */
final class GetBench implements Benches.Bench {
    private final PeerStore peer;
    private final String topic;
    private final int queues;
    private final int page;
    private final boolean decode;
    private int queueId;
    private long offset;
    private int rounds;

    GetBench(JSONObject request) throws Exception {
        peer = PeerStore.open(request);
        peer.settle();
        topic = request.getString("topic");
        queues = request.getIntValue("queues", 1);
        page = request.getIntValue("page", 32);
        decode = request.getBooleanValue("decode");
        offset = peer.store.getMinOffsetInQueue(topic, 0);
    }

    @Override
    public JSONObject round(JSONObject request) {
        long wanted = request.getLongValue("count");
        long count = 0;
        long bytes = 0;
        byte[] copy = new byte[peer.config.getMaxMessageSize()];
        Benches.Clock clock = new Benches.Clock();
        while (count < wanted) {
            GetMessageResult got =
                peer.store.getMessage("bench", topic, queueId, offset, (int) Math.min(page, wanted - count), null);
            try {
                for (ByteBuffer buffer : got.getMessageBufferList()) {
                    bytes += buffer.remaining();
                    if (decode) {
                        MessageDecoder.decode(buffer, true, false);
                    } else {
                        buffer.get(copy, 0, buffer.remaining());
                    }
                }
                count += got.getMessageCount();
                offset = got.getNextBeginOffset();
                if (offset >= got.getMaxOffset()) {
                    queueId = (queueId + 1) % queues;
                    offset = peer.store.getMinOffsetInQueue(topic, queueId);
                } else if (got.getMessageCount() == 0) {
                    throw new IllegalStateException(got.getStatus() + " at " + queueId + "/" + offset);
                }
            } finally {
                got.release();
            }
        }
        return JSONObject.of(
            "seconds", clock.seconds(), "cpuSeconds", clock.cpuSeconds(), "round", ++rounds, "count", count,
            "bytes", bytes);
    }

    @Override
    public void close() throws Exception {
        peer.close();
    }
}
