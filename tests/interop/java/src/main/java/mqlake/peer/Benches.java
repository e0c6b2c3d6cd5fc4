package mqlake.peer;

import com.alibaba.fastjson2.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;

/**
 * Rounds of work, timed, on request: whoever asks alternates them with another's rounds and goes on until this JVM
 * has compiled what it will compile.
 *
 * <pre>
 * bench.open   kind and what the kind takes     answers its handle
 * bench.round  bench, and what the kind takes   seconds, cpuSeconds (of the whole process), count (messages) and more
 * bench.close  bench
 * </pre>
 *
 * Kinds: append (see {@link AppendBench}), get (see {@link GetBench}), recover (see {@link RecoverBench}).
 */
final class Benches {
    interface Bench {
        JSONObject round(JSONObject request) throws Exception;

        void close() throws Exception;
    }

    /** Wall and processor time since its creation. */
    static final class Clock {
        private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

        private final long wall = System.nanoTime();
        private final long cpu = SYSTEM.getProcessCpuTime();

        double seconds() {
            return (System.nanoTime() - wall) / 1e9;
        }

        double cpuSeconds() {
            return (SYSTEM.getProcessCpuTime() - cpu) / 1e9;
        }
    }

    private final Map<Integer, Bench> benches = new HashMap<>();
    private int lastHandle;

    JSONObject open(JSONObject request) throws Exception {
        String kind = request.getString("kind");
        Bench bench;
        switch (kind) {
            case "append":
                bench = new AppendBench(request);
                break;
            case "get":
                bench = new GetBench(request);
                break;
            case "recover":
                bench = new RecoverBench();
                break;
            default:
                throw new IllegalArgumentException("unknown bench " + kind);
        }
        benches.put(++lastHandle, bench);
        return JSONObject.of("bench", lastHandle);
    }

    JSONObject round(JSONObject request) throws Exception {
        return benches.get(request.getInteger("bench")).round(request);
    }

    JSONObject close(JSONObject request) throws Exception {
        benches.remove(request.getInteger("bench")).close();
        return new JSONObject();
    }

    /** "count" operations as {@link Operations} take them, made from a template whose "%d" become numbers. */
    static JSONObject[] ring(JSONObject template, int count) {
        JSONObject[] ring = new JSONObject[count];
        for (int i = 0; i < count; i++) {
            ring[i] = numbered(template, i);
        }
        return ring;
    }

    private static JSONObject numbered(JSONObject template, int number) {
        return JSONObject.parseObject(template.toString().replace("%d", String.valueOf(number)));
    }
}
