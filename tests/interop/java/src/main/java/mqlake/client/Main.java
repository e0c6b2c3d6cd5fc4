package mqlake.client;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own clients behind a line protocol (see {@link RequestLoop}). Clients are known by a name that the
 * request gives, which is their instance name too: two names are two clients to a broker.
 *
 * <pre>
 * producer.*   see {@link Producers}
 * push.*       see {@link PushConsumers}
 * pull.*       see {@link LitePullConsumers}
 * load.*       see {@link Loads}
 * bench.*      see {@link Bench}
 * topic.*      see {@link Topics}
 * </pre>
 */
public final class Main {
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
        Map<String, RequestLoop.Service> services = Map.of(
            "producer", new Producers(),
            "push", new PushConsumers(),
            "pull", new LitePullConsumers(),
            "load", new Loads(),
            "bench", new Bench(),
            "topic", new Topics());
        RequestLoop.run((what, request) -> {
            String[] parts = what.split("\\.", 2);
            RequestLoop.Service service = services.get(parts[0]);
            if (service == null) {
                throw new IllegalArgumentException(what);
            }
            return service.serve(parts[1], request);
        });
    }
}
