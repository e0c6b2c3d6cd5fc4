package mqlake.peer;

import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

/**
 * All a store holds, a line each: "record" (the log in order), then per queue "queue", its "unit"s as they are
 * iterated and its "message"s as getMessage gives them.
 */
final class Contents {
    private static final int COUNT_PER_GET = 32;

    private final PeerStore peer;
    private final Consumer<JSONObject> answer;

    Contents(PeerStore peer, Consumer<JSONObject> answer) {
        this.peer = peer;
        this.answer = answer;
    }

    JSONObject read(JSONObject request) throws Exception {
        peer.settle();
        if (request.getBooleanValue("records", true)) {
            records();
        }
        Map<String, Map<Integer, ConsumeQueueInterface>> topics =
            new TreeMap<>(peer.store.getQueueStore().getConsumeQueueTable());
        for (Map<Integer, ConsumeQueueInterface> queues : topics.values()) {
            for (ConsumeQueueInterface queue : new TreeMap<>(queues).values()) {
                queue(queue);
            }
        }
        return peer.offsets();
    }

    private void answer(String kind, JSONObject line) {
        line.put("kind", kind);
        answer.accept(line);
    }

    private void records() {
        long at = peer.store.getMinPhyOffset();
        long end = peer.store.getMaxPhyOffset();
        while (at >= 0 && at < end) {
            SelectMappedBufferResult rest = peer.store.getCommitLogData(at);
            if (rest == null) {
                throw new IllegalStateException("no data at physical offset " + at);
            }
            try {
                at = file(at, rest.getByteBuffer());
            } finally {
                rest.release();
            }
        }
    }

    /** The records from physical offset "at" to the end of its file; answers where the next file begins. */
    private long file(long at, ByteBuffer data) {
        while (data.remaining() >= 8) {
            int begin = data.position();
            if (data.getInt(begin + 4) == CommitLog.BLANK_MAGIC_CODE) {
                return at + begin + data.getInt(begin);
            }
            ByteBuffer one = data.slice();
            JSONObject line = Lines.record(one);
            if (line == null) {
                throw new IllegalStateException("no valid record at physical offset " + (at + begin));
            }
            answer("record", line);
            data.position(begin + one.position());
        }
        return at + data.position();
    }

    private void queue(ConsumeQueueInterface queue) throws Exception {
        long min = queue.getMinOffsetInQueue();
        long max = queue.getMaxOffsetInQueue();
        JSONObject line = where(queue);
        line.put("minOffset", min);
        line.put("maxOffset", max);
        line.put("type", queue.getCQType().name());
        line.put("maxPhysicOffset", queue.getMaxPhysicOffset());
        answer("queue", line);
        units(queue, min, max);
        messages(queue, min, max);
    }

    private static JSONObject where(ConsumeQueueInterface queue) {
        return JSONObject.of("topic", queue.getTopic(), "queueId", queue.getQueueId());
    }

    private void units(ConsumeQueueInterface queue, long min, long max) {
        for (long at = min; at < max; ) {
            // An iterator ends with its file.
            ReferredIterator<CqUnit> units = queue.iterateFrom(at);
            if (units == null) {
                return;
            }
            long begin = at;
            try {
                while (units.hasNext()) {
                    CqUnit unit = units.next();
                    JSONObject line = where(queue);
                    line.put("queueOffset", unit.getQueueOffset());
                    line.put("physicalOffset", unit.getPos());
                    line.put("size", unit.getSize());
                    line.put("tagsCode", unit.getTagsCode());
                    line.put("batchNum", unit.getBatchNum());
                    ConsumeQueueExt.CqExtUnit ext = unit.getCqExtUnit();
                    if (ext != null) {
                        line.put("extStoreTime", ext.getMsgStoreTime());
                        line.put("extBitMap", Lines.base64(ext.getFilterBitMap()));
                    }
                    answer("unit", line);
                    at = unit.getQueueOffset() + Math.max(1, unit.getBatchNum());
                }
            } finally {
                units.release();
            }
            if (at == begin) {
                return;
            }
        }
    }

    private void messages(ConsumeQueueInterface queue, long min, long max) {
        for (long at = min; at < max; ) {
            GetMessageResult got = peer.store.getMessage(
                "peer", queue.getTopic(), queue.getQueueId(), at, COUNT_PER_GET, null);
            try {
                for (ByteBuffer buffer : got.getMessageBufferList()) {
                    JSONObject line = Lines.record(buffer.slice());
                    if (line == null) {
                        throw new IllegalStateException("no valid record for " + where(queue) + " from " + at);
                    }
                    answer("message", line);
                }
                if (got.getNextBeginOffset() <= at) {
                    return;
                }
                at = got.getNextBeginOffset();
            } finally {
                got.release();
            }
        }
    }
}
