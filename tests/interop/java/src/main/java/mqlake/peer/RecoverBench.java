package mqlake.peer;

import com.alibaba.fastjson2.JSONObject;

/**
 * Opening a store; whether that means a recovery after a crash or the rebuild of queues and index is a matter of the
 * directory, which whoever asks prepares before every round.
 *
 * <pre>
 * round  root, config{} → seconds, cpuSeconds: until load() is done and all is dispatched; bytes of the log,
 *                         loadSeconds: of load() alone. The store is then shut down cleanly, outside the time.
 * </pre>
 */
final class RecoverBench implements Benches.Bench {
    private int rounds;

    @Override
    public JSONObject round(JSONObject request) throws Exception {
        // Whatever an earlier round has mapped is unmapped by the collector.
        System.gc();
        Benches.Clock clock = new Benches.Clock();
        PeerStore peer = PeerStore.create(request);
        peer.load();
        double loadSeconds = clock.seconds();
        peer.start();
        peer.settle();
        JSONObject line = JSONObject.of("seconds", clock.seconds(), "cpuSeconds", clock.cpuSeconds());
        line.put("loadSeconds", loadSeconds);
        line.put("round", ++rounds);
        line.put("lastExitOk", peer.lastExitOk);
        line.put("bytes", peer.store.getMaxPhyOffset() - peer.store.getMinPhyOffset());
        peer.close();
        return line;
    }

    @Override
    public void close() {
    }
}
