package mqlake.peer;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.MQVersion;

/**
 * The request loop. A request names what to "do":
 *
 * <pre>
 * hello                                          versions and process id
 * open    root, config{}, topics{}               load and start a store; answers its handle
 * put     store, ops[]                           a line per operation (see {@link Operations})
 * read    store                                  everything in the store, a line per thing (see {@link Contents})
 * query   store, queries[]                       a line per query (see {@link Queries})
 * settle  store                                  wait until all is dispatched
 * flush   store                                  flush the commit log
 * close   store                                  clean shutdown
 * halt                                           end the process as a crash does: no shutdown hook, abort file stays
 * bench.open / bench.round / bench.close         see {@link Benches}
 * exit                                           end the process; stores still open are left as after a crash
 * </pre>
 */
final class Server {
    private final BufferedReader requests;
    private final PrintStream answers;
    private final Map<Integer, PeerStore> stores = new HashMap<>();
    private final Benches benches = new Benches();
    private int lastHandle;

    Server(BufferedReader requests, PrintStream answers) {
        this.requests = requests;
        this.answers = answers;
    }

    void run() throws IOException {
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            if ("exit".equals(request.getString("do"))) {
                return;
            }
            JSONObject last;
            try {
                last = serve(request);
                last.put("end", true);
            } catch (Throwable failure) {
                failure.printStackTrace();
                last = JSONObject.of("error", failure.toString());
            }
            answer(last);
            answers.flush();
            if ("halt".equals(request.getString("do"))) {
                Runtime.getRuntime().halt(137);
            }
        }
    }

    private void answer(JSONObject line) {
        answers.println(line.toString(JSONWriter.Feature.LargeObject));
        if (answers.checkError()) {
            throw new IllegalStateException("the reader of the answers is gone");
        }
    }

    private JSONObject serve(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "hello":
                return JSONObject.of(
                    "pid", ProcessHandle.current().pid(),
                    "java", System.getProperty("java.version"),
                    "rocketmq", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
            case "open":
                return open(request);
            case "put": {
                PeerStore store = store(request);
                JSONArray ops = request.getJSONArray("ops");
                store.onOwnThread(() -> {
                    Operations operations = new Operations(store);
                    for (int i = 0; i < ops.size(); i++) {
                        answer(operations.run(ops.getJSONObject(i)));
                    }
                    return null;
                });
                return new JSONObject();
            }
            case "read":
                return new Contents(store(request), this::answer).read(request);
            case "query": {
                Queries queries = new Queries(store(request));
                JSONArray asked = request.getJSONArray("queries");
                for (int i = 0; i < asked.size(); i++) {
                    answer(queries.ask(asked.getJSONObject(i)));
                }
                return new JSONObject();
            }
            case "settle":
                store(request).settle();
                return store(request).offsets();
            case "flush":
                return JSONObject.of("flushedWhere", store(request).store.flush());
            case "close":
                return stores.remove(request.getInteger("store")).close();
            case "halt":
                return new JSONObject();
            case "bench.open":
                return benches.open(request);
            case "bench.round":
                return benches.round(request);
            case "bench.close":
                return benches.close(request);
            default:
                throw new IllegalArgumentException("unknown request " + request.getString("do"));
        }
    }

    private JSONObject open(JSONObject request) throws Exception {
        PeerStore store = PeerStore.open(request);
        stores.put(++lastHandle, store);
        JSONObject line = store.offsets();
        line.put("store", lastHandle);
        line.put("loadSeconds", store.loadSeconds);
        line.put("lastExitOk", store.lastExitOk);
        return line;
    }

    private PeerStore store(JSONObject request) {
        PeerStore store = stores.get(request.getInteger("store"));
        if (store == null) {
            throw new IllegalArgumentException("no open store " + request.getInteger("store"));
        }
        return store;
    }
}
