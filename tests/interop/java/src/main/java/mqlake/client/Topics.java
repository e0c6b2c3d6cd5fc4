package mqlake.client;

import com.alibaba.fastjson2.JSONObject;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import mqlake.lines.Patience;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Topics, made as mqadmin makes them.
 *
 * <pre>
 * topic.create   namesrv, topic, queues     on every broker; then the name server knows it
 * </pre>
 */
final class Topics implements RequestLoop.Service {
    private final Map<String, DefaultMQAdminExt> tools = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        if (!"create".equals(what)) {
            throw new IllegalArgumentException(what);
        }
        String topic = request.getString("topic");
        int queues = request.getIntValue("queues");
        DefaultMQAdminExt admin = tool(request.getString("namesrv"));
        Collection<BrokerData> brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable().values();
        for (BrokerData broker : brokers) {
            admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), new TopicConfig(topic, queues, queues));
        }
        // a broker does not wait for ever until the name server has heard of it
        Patience.find(() -> admin.examineTopicRouteInfo(topic).getBrokerDatas().size() == brokers.size() ? topic : null);
        return JSONObject.of("brokers", brokers.size());
    }

    /** One for each name server, kept. */
    private DefaultMQAdminExt tool(String namesrv) throws Exception {
        DefaultMQAdminExt tool = tools.get(namesrv);
        if (tool == null) {
            tool = new DefaultMQAdminExt(Patience.MILLIS);
            tool.setNamesrvAddr(namesrv);
            Patience.give(tool);
            tool.setInstanceName("topics-" + tools.size());
            tool.start();
            tools.put(namesrv, tool);
        }
        return tool;
    }
}
