package mqlake.peer;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/**
 * Puts by "threads" producers, each waiting for its result.
 *
 * <pre>
 * open   root, config{}, topics{}, threads, queues, op{} (a put or batch; "%d" in it becomes a number of the
 *        message), logBytesMax: a log larger than that is begun anew before a round, outside its time
 * round  count (messages)
 *        → count, failed, bytes, seconds, cpuSeconds: until all are acknowledged;
 *          dispatchedSeconds, dispatchedCpuSeconds: until all are also in their queues and the index
 * </pre>
 *
 * What a broker does before the store is called (decoding the request) is done once, before: each put is a new
 * message around a prepared body and prepared properties.
 */
final class AppendBench implements Benches.Bench {
    private static final int RING = 1024;

    private final JSONObject opened;
    private final long logBytesMax;
    private final int threads;
    private final int queues;
    private final int perPut;
    private final MessageExtBrokerInner[] ring;
    private final ExecutorService producers;
    private PeerStore peer;
    private int rounds;

    AppendBench(JSONObject opened) throws Exception {
        this.opened = opened;
        logBytesMax = opened.getLongValue("logBytesMax", Long.MAX_VALUE);
        threads = opened.getIntValue("threads", 1);
        queues = opened.getIntValue("queues", 1);
        JSONObject op = opened.getJSONObject("op");
        boolean batch = "batch".equals(op.getString("op"));
        perPut = batch ? op.getJSONArray("messages").size() : 1;
        JSONObject[] ops = Benches.ring(op, batch ? RING / 16 : RING);
        ring = new MessageExtBrokerInner[ops.length];
        for (int i = 0; i < ops.length; i++) {
            ring[i] = batch ? Operations.batch(ops[i]) : Operations.single(ops[i]);
        }
        producers = Executors.newFixedThreadPool(threads);
        peer = PeerStore.open(opened);
    }

    @Override
    public JSONObject round(JSONObject request) throws Exception {
        if (peer.store.getMaxPhyOffset() - peer.store.getMinPhyOffset() > logBytesMax) {
            peer.close();
            peer.store.destroy();
            peer = PeerStore.open(opened);
        }
        int puts = request.getIntValue("count") / perPut / threads;
        AtomicInteger failed = new AtomicInteger();
        CyclicBarrier start = new CyclicBarrier(threads + 1);
        List<Future<Void>> running = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            running.add(producers.submit(producer(thread, puts, start, failed)));
        }
        long begin = peer.store.getMaxPhyOffset();
        start.await();
        Benches.Clock clock = new Benches.Clock();
        for (Future<Void> each : running) {
            each.get();
        }
        JSONObject line = new JSONObject();
        line.put("seconds", clock.seconds());
        line.put("cpuSeconds", clock.cpuSeconds());
        peer.settle();
        line.put("dispatchedSeconds", clock.seconds());
        line.put("dispatchedCpuSeconds", clock.cpuSeconds());
        line.put("round", ++rounds);
        line.put("count", (long) puts * perPut * threads);
        line.put("failed", failed.get());
        line.put("bytes", peer.store.getMaxPhyOffset() - begin);
        return line;
    }

    private Callable<Void> producer(int thread, int puts, CyclicBarrier start, AtomicInteger failed) {
        return () -> {
            start.await();
            for (int n = 0; n < puts; n++) {
                MessageExtBrokerInner prepared = ring[(thread + n * threads) % ring.length];
                PutMessageResult result = prepared instanceof MessageExtBatch
                    ? peer.store.putMessages((MessageExtBatch) copy(prepared, new MessageExtBatch(), thread + n))
                    : peer.store.putMessage(copy(prepared, new MessageExtBrokerInner(), thread + n));
                if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                    failed.incrementAndGet();
                }
            }
            return null;
        };
    }

    private MessageExtBrokerInner copy(MessageExtBrokerInner prepared, MessageExtBrokerInner message, int number) {
        message.setTopic(prepared.getTopic());
        message.setQueueId(number % queues);
        message.setBody(prepared.getBody());
        message.setFlag(prepared.getFlag());
        message.setSysFlag(prepared.getSysFlag());
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(prepared.getBornHost());
        message.setStoreHost(prepared.getStoreHost());
        message.setTagsCode(prepared.getTagsCode());
        // The store reads the map and does not change it, as long as no CRC property is appended.
        MessageAccessor.setProperties(message, prepared.getProperties());
        message.setPropertiesString(prepared.getPropertiesString());
        return message;
    }

    @Override
    public void close() throws Exception {
        producers.shutdown();
        peer.close();
    }
}
