package mqlake.groups;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.HashMap;
import java.util.Map;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper;

/**
 * RocketMQ's managers of groups and its filters behind a line protocol (see {@link RequestLoop}):
 *
 * <pre>
 * recode    kind, text             what the manager of this config file makes of it, and writes again
 * evaluate  cases [{sql,           true, false or null for each; "error" when the evaluation throws,
 *           properties}]           "illegal" when the expression does not compile
 * bloom     text, error, expected  the positions in the bloom filter, and how many bits it has
 * </pre>
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        RequestLoop.run(Main::serve);
    }

    private static JSONObject serve(String what, JSONObject request) {
        switch (what) {
            case "recode":
                return JSONObject.of("text", recode(request.getString("kind"), request.getString("text")));
            case "evaluate":
                return evaluate(request.getJSONArray("cases"));
            case "bloom":
                BloomFilter filter =
                    BloomFilter.createByFn(request.getIntValue("error"), request.getIntValue("expected"));
                int[] positions = filter.calcBitPositions(request.getString("text"));
                return JSONObject.of("positions", positions, "bits", filter.getM());
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static String recode(String kind, String text) {
        if ("delayOffset".equals(kind)) {
            return RemotingSerializable.fromJson(text, DelayOffsetSerializeWrapper.class).toJson(true);
        }
        ConfigManager manager;
        switch (kind) {
            case "subscriptionGroup":
                manager = new SubscriptionGroupManager();
                break;
            case "consumerOffset":
                manager = new ConsumerOffsetManager();
                break;
            case "consumerFilter":
                manager = new ConsumerFilterManager();
                break;
            default:
                throw new IllegalArgumentException(kind);
        }
        manager.decode(text);
        return manager.encode(true);
    }

    private static JSONObject evaluate(JSONArray cases) {
        JSONArray values = new JSONArray();
        for (int i = 0; i < cases.size(); i++) {
            JSONObject one = cases.getJSONObject(i);
            Map<String, String> properties = new HashMap<>();
            one.getJSONObject("properties").forEach((name, value) -> properties.put(name, (String) value));
            values.add(evaluate(one.getString("sql"), properties));
        }
        return JSONObject.of("values", values);
    }

    private static Object evaluate(String sql, Map<String, String> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(sql);
        } catch (MQFilterException illegal) {
            return "illegal";
        }
        try {
            return String.valueOf(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Exception failure) {
            return "error";
        }
    }
}
