package mqlake.client;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own clients behind a line protocol: one JSON request a line on stdin, one JSON answer a line on stdout,
 * {"error":…} when an exception was thrown. Clients are known by a name that the request gives, which is their
 * instance name too: two names are two clients to a broker. A request names what to "do":
 *
 * <pre>
 * producer.*   see {@link Producers}
 * push.*       see {@link PushConsumers}
 * pull.*       see {@link LitePullConsumers}
 * load.*       see {@link Loads}
 * bench.*      see {@link Bench}
 * topic.*      see {@link Topics}
 * exit
 * </pre>
 */
public final class Main {
    interface Service {
        JSONObject serve(String what, JSONObject request) throws Exception;
    }

    private Main() {
    }

    /** For the end of a client: it says goodbye at once and then waits up to three seconds for its own threads. */
    static JSONObject later(Runnable end) {
        new Thread(end, "end").start();
        return new JSONObject();
    }

    /** Signs every request as brokers with access control want it; null where the request has no accessKey. */
    static RPCHook signature(JSONObject request) {
        return request.containsKey("accessKey") ? new AclClientRPCHook(
            new SessionCredentials(request.getString("accessKey"), request.getString("secretKey"))) : null;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Whatever a library prints must not get between the answers.
        System.setOut(System.err);
        Producers producers = new Producers();
        PushConsumers pushConsumers = new PushConsumers();
        LitePullConsumers pullConsumers = new LitePullConsumers();
        Loads loads = new Loads();
        Bench bench = new Bench();
        Topics topics = new Topics();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            String[] what = request.getString("do").split("\\.", 2);
            if ("exit".equals(what[0])) {
                break;
            }
            JSONObject answer;
            try {
                Service service = switch (what[0]) {
                    case "producer" -> producers;
                    case "push" -> pushConsumers;
                    case "pull" -> pullConsumers;
                    case "load" -> loads;
                    case "bench" -> bench;
                    case "topic" -> topics;
                    default -> throw new IllegalArgumentException(what[0]);
                };
                answer = service.serve(what[1], request);
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer = JSONObject.of("error", failure.toString());
            }
            answers.println(answer);
        }
        // Clients leave threads behind that are not daemons.
        Runtime.getRuntime().halt(0);
    }
}
